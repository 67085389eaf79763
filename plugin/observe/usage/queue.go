package usage

// enqueue adds a batch to the queue, and drops the oldest ones if there is no room for all. The batch that is being
// sent stays.
func (r *Reporter) enqueue(w *waiting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, w)
	r.bytes += sizeOf(int64(len(w.payload)))
	first, dropped := 0, 0
	if r.sending {
		first = 1
	}
	for r.bytes > r.options.MaxBytes && len(r.queue) > first+1 {
		r.removeAt(first)
		dropped++
	}
	r.account.Dropped[Room] += uint64(dropped)
	if dropped > 0 && r.account.Dropped[Room] == uint64(dropped) {
		r.options.Log.Error("batches of usage are dropped: too many wait for Postgres", "bytes", r.options.MaxBytes)
	}
	r.signals.Wake()
}

// removeAt removes a batch of the queue, and its file. r.mu is held.
func (r *Reporter) removeAt(i int) {
	w := r.queue[i]
	r.bytes -= sizeOf(int64(len(w.payload)))
	copy(r.queue[i:], r.queue[i+1:])
	r.queue[len(r.queue)-1] = nil
	if r.queue = r.queue[:len(r.queue)-1]; len(r.queue) == 0 {
		r.queue = nil // frees the memory of the longest queue
	}
	if w.saved {
		if err := r.folder.remove(w.seq); err != nil {
			r.options.Log.Warn("removing a batch of usage failed: the next process sends it again", "error", err)
		}
	}
}

// first returns the oldest batch, which stays in the queue until sent is called; nil: none waits.
func (r *Reporter) first() *waiting {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sending = len(r.queue) > 0; !r.sending {
		return nil
	}
	return r.queue[0]
}

// sent removes the oldest batch if it needs to be sent no more, and counts it.
func (r *Reporter) sent(err error) (done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sending = false
	if len(r.queue) == 0 || !r.count(err) { // abandon may have emptied the queue
		return false
	}
	r.removeAt(0)
	return true
}

// count counts the result of a call of the sink, and reports whether its batch needs to be sent no more. r.mu is held.
func (r *Reporter) count(err error) bool {
	switch {
	case err == nil:
		r.account.Stored++
		return true
	case IsRejection(err):
		r.account.Dropped[Rejected]++
		return true
	}
	r.account.Failed++
	return false
}

// openFolder opens the folder of this process. Without it batches wait in memory only.
func (r *Reporter) openFolder() {
	if r.options.Dir == "" {
		return
	}
	f, err := openFolder(r.options.Dir, r.epoch, r.options.Node)
	if err != nil {
		r.options.Log.Warn("usage cannot be saved: what Postgres has not stored is lost when this process ends",
			"error", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.folder = f
}

// save writes a batch to the folder. If that fails it waits in memory only, which is logged once
// until it succeeds.
func (r *Reporter) save(w *waiting) {
	if r.folder == nil {
		return
	}
	if err := r.folder.save(w); err != nil {
		if !r.unsaved {
			r.options.Log.Warn("saving a batch of usage failed: it waits in memory only", "error", err)
		}
		r.unsaved = true
		return
	}
	r.unsaved, w.saved = false, true
}

// abandon drops the batches that are in no file, and closes the folder.
func (r *Reporter) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	lost, kept := 0, 0
	for _, w := range r.queue {
		if w.saved {
			kept++
		} else {
			lost++
		}
	}
	r.queue, r.bytes = nil, 0
	r.account.Dropped[Shutdown] += uint64(lost)
	if lost > 0 {
		r.options.Log.Warn("usage was dropped at shutdown: Postgres did not store it", "batches", lost)
	}
	if kept > 0 {
		r.options.Log.Info("usage waits for the next process: Postgres did not store it", "batches", kept)
	}
	if r.folder != nil {
		if err := r.folder.close(kept == 0); err != nil {
			r.options.Log.Warn("closing the folder of usage failed", "error", err)
		}
	}
}
