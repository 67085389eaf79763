# Everything here needs Go and git. What needs Redis, Postgres or Prometheus starts
# servers of its own, on temporary folders. Where a program for that is missing,
# the tests, specs and benchmarks, demo-full and playground install it by apt-get if they
# may, once; demo-redis only says what is missing.

SHELL := /bin/bash
.DEFAULT_GOAL := help

GO    ?= go
CACHE := .cache

# Where the chaos specs write what each disaster cost.
export CHAOS_TABLE := $(CURDIR)/$(CACHE)/chaos.md

COUNT    ?= 1
BENCH    ?= .
FUZZTIME ?= 10s
SOAK     ?= 10m
LISTEN   ?= 127.0.0.1:8000

BENCH_TABLE ?= $(CACHE)/benchmarks.md

PARITY_STEPS   ?= 2000000
MEMORY_BUCKETS ?= 10000000

# Go has no race detector without a C compiler. Elsewhere the tests run without
# one and say so; CI refuses to.
CGO  := $(shell $(GO) env CGO_ENABLED)
RACE := $(if $(filter 1,$(CGO)),-race)

# The linter is rebuilt for another Go, whose standard library it could not read.
LINT_PIN := .ci/golangci-lint
LINT     := $(CACHE)/bin/golangci-lint-$(shell $(GO) env GOVERSION)

UNIT = $$($(GO) list ./... | grep -v '/spec\(/\|$$\)')

TESTS = --include='*_test.go' --exclude-dir=.git --exclude-dir=$(CACHE)

# $(call packages_with,PATTERN): the folders whose tests have a line like PATTERN.
packages_with = grep -rlE $(TESTS) '$(1)' . | xargs -r -n1 dirname | sort -u

# What git would commit, by content.
WORKTREE = git ls-files -z -co --exclude-standard | xargs -0 cksum 2>/dev/null || true

# $(call gotest,LOG,ARGUMENTS): the whole output goes to a file, what matters to the
# terminal. A skipped test is named, and in CI it fails: a promise nobody checked. The
# target vet looks for more than go test does by itself, and make test has it once.
define gotest
@mkdir -p $(CACHE)
@echo "go test $(RACE): $(1)"
@set -o pipefail; $(GO) test -v -vet=off $(RACE) $(2) 2>&1 | tee $(CACHE)/$(1).log \
	| grep -vE '^=== |^ *--- PASS|^PASS$$|\[rapid\] OK|no test files'
@if grep -qE '^ *--- SKIP' $(CACHE)/$(1).log && [ -n "$${CI:-}" ]; then \
	echo "skipped tests fail in CI (whole log: $(CACHE)/$(1).log)" >&2; exit 1; fi
endef

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the plugin server, the operator's program and the demo gateway into ./bin
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ \
		./plugin/cmd/tenant-rate-limiting ./plugin/cmd/ratelimit ./kong/cmd/demo-gateway

# $(call with_redis,COMMAND): runs a command beside a Redis of its own, whose socket is $$redis.
define with_redis
@command -v redis-server >/dev/null || { echo "redis-server is missing: apt-get install redis-server" >&2; exit 1; }
@dir="$$(mktemp -d)"; redis="$$dir/redis.sock"; \
redis-server --port 0 --unixsocket "$$redis" --save '' --appendonly no --dir "$$dir" >"$$dir/log" & \
pid=$$!; trap 'kill $$pid; wait $$pid; rm -rf "$$dir"' EXIT; \
until [ -S "$$redis" ]; do kill -0 $$pid || exit 1; done; \
$(1)
endef

.PHONY: demo
demo: build ## Play a session through gateway and plugin, then stay up (ONCE=1: then exit)
	bin/demo-gateway -config kong/kong.yml -plugin bin/tenant-rate-limiting \
		-listen $(LISTEN) -session $(if $(filter 1,$(ONCE)),-once) $(if $(REDIS),-redis $(REDIS))

.PHONY: demo-redis
demo-redis: build ## The same session with the counters in a Redis of its own (needs redis-server)
	$(call with_redis,bin/demo-gateway -config kong/kong.yml -plugin bin/tenant-rate-limiting \
		-listen $(LISTEN) -session $(if $(filter 1,$(ONCE)),-once) -redis "$$redis")

.PHONY: demo-full
demo-full: build ## Limits changed at run time, and Postgres away, with Redis and Postgres of its own (ONCE=1: then exit)
	LISTEN=$(LISTEN) ONCE=$(ONCE) kong/demo-full.sh

.PHONY: playground
playground: build ## Start a Redis, a Postgres and a gateway with the plugin, to follow the docs with
	@LISTEN=$(LISTEN) kong/playground.sh up

.PHONY: playground-stop
playground-stop: ## End them
	@kong/playground.sh down

.PHONY: test
test: race vet unit spec ## Vet, unit tests and specs with the race detector; nothing may be skipped in CI

.PHONY: race
race:
ifeq ($(RACE),)
	@echo "no C compiler: tests run without the race detector" >&2; [ -z "$${CI:-}" ]
endif

.PHONY: vet
vet:
	$(GO) vet ./...

.PHONY: unit
unit: ## The unit tests alone
	$(call gotest,unit,-timeout 10m -p 3 $(UNIT))

.PHONY: spec
spec: ## The specs alone: the built programs, from outside
	$(call gotest,spec,-timeout 10m -count=1 -parallel 6 -skip '^TestChaos' ./spec/...)

.PHONY: chaos
chaos: ## Everything that Redis and the network can do wrong, under load; the table of what it cost
	$(call gotest,chaos,-timeout 10m -count=1 -run '^TestChaos' ./spec)
	@cat $(CACHE)/chaos.md

# The tables of docs/benchmarks.md are one run's of this, copied from BENCH_TABLE.
.PHONY: bench
bench: ## What a decision costs, beside other limiters, in this process, through the socket and on several nodes (10 min)
	@mkdir -p $(CACHE)
	@set -o pipefail; { $(GO) test -run '^$$' -bench . -timeout 30m ./plugin/internal/compare \
		&& $(GO) test -run '^$$' -bench BelowTheLimit -benchtime 1x -timeout 30m ./plugin/bucket/lease \
		&& $(GO) test -run '^$$' -bench 'Socket|Denial|AddedLatency|Masters|Accuracy$$|HotTenant|Flood|HostileBodies' -benchtime 1x -timeout 30m ./spec; } | tee $(CACHE)/bench.txt
	@$(GO) run ./plugin/internal/benchtable -command 'make bench' -across goroutines,callers,live-nodes \
		plugin/internal/compare/notes.md spec/testdata/benchmarks.md <$(CACHE)/bench.txt >$(BENCH_TABLE)
	@echo "the tables: $(BENCH_TABLE)"

# BENCH_KONG has further flags: see bin/bench-kong -help. A Kong without a database needs -print-config first.
.PHONY: bench-kong
bench-kong: build ## Measure the plugin behind a Kong (KONG=http://HOST:PORT ADMIN=URL REDIS=HOST:PORT), or behind the stand-in
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./kong/cmd/bench-kong ./plugin/cmd/bench-floor
ifdef KONG
	bin/bench-kong -proxy $(KONG) $(if $(ADMIN),-admin $(ADMIN)) $(if $(REDIS),-redis $(REDIS)) $(BENCH_KONG)
else
	$(call with_redis,bin/bench-kong -stand-in bin/demo-gateway -plugin bin/tenant-rate-limiting \
		-plugin bin/bench-floor -redis "$$redis" -process "redis=^redis-server .*$$redis" $(BENCH_KONG))
endif

.PHONY: bench-packages
bench-packages: ## Run every package's own benchmarks, with allocations (BENCH=regexp COUNT=n)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) -timeout 30m \
		$$($(call packages_with,^func Benchmark) | grep -v internal/compare)

# One run on one machine: its numbers are compared with each other, never with another run's.
.PHONY: bench-redis
bench-redis: ## What a decision costs Redis, beside what others send, and what it costs the caller
	$(GO) test -run '^$$' -bench . -timeout 30m ./plugin/bucket/redis

.PHONY: bench-memory
bench-memory: ## What buckets take in Redis: each kind, and MEMORY_BUCKETS (10000000) of all kinds together
	MEMORY_BUCKETS=$(MEMORY_BUCKETS) $(GO) test -run '^$$' -bench '^BenchmarkMemory$$' -benchtime 1x -timeout 60m ./plugin/bucket/redis

.PHONY: parity
parity: ## Play PARITY_STEPS (2000000) random requests to the script in Redis and to its model in Go
	PARITY_STEPS=$(PARITY_STEPS) $(GO) test -count=1 -timeout 0 -run '^TestLuaDecidesAndRemembersAsGoDoes$$' ./plugin/bucket/redis

.PHONY: fuzz
fuzz: ## Fuzz every target for FUZZTIME (10s)
	@set -o pipefail; grep -rnoE $(TESTS) '^func Fuzz\w+' . \
	| sed -E 's|^(.*)/[^/]*:[0-9]+:func (Fuzz.*)|\1 \2|' | sort -u \
	| while read -r folder target; do \
		echo "fuzz $$folder $$target"; \
		$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$folder" || exit 1; \
	done

# A Soak test always runs: in its long form where the environment has SOAK, else in a short one (internal/soak).
.PHONY: soak
soak: ## Run the Soak tests and specs in their long form, for SOAK (10m) each where they run for a while
	@mkdir -p $(CACHE)
	set -o pipefail; SOAK=$(SOAK) $(GO) test -v $(RACE) -count=1 -p 1 -timeout 0 -run Soak \
		$$($(call packages_with,^func TestSoak)) 2>&1 | tee $(CACHE)/soak.log
	@grep -q '^=== RUN' $(CACHE)/soak.log || { echo "no Soak test ran" >&2; exit 1; }

.PHONY: lint
lint: $(LINT) ## Lint: purity, correctness, words, line length, format
	GOLANGCI_LINT_CACHE=$(CURDIR)/$(CACHE)/golangci-lint $(LINT) run ./...

.PHONY: fmt
fmt: $(LINT) ## Format the Go files
	$(LINT) fmt ./...

$(LINT): $(LINT_PIN)/go.mod $(LINT_PIN)/go.sum
	@echo "building golangci-lint: a minute or two, once"
	$(GO) build -C $(LINT_PIN) -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ tool

# Compared with the tree as it was, so that it also serves before a commit. Golden
# files are rewritten by the packages whose tests define the -update flag.
.PHONY: verify
verify: ## Regenerate everything generated, and fail if anything was out of date
	@git rev-parse --is-inside-work-tree > /dev/null
	@mkdir -p $(CACHE)
	@($(WORKTREE)) > $(CACHE)/before
	$(GO) generate ./...
	$(GO) mod tidy -diff
	@golden="$$($(call packages_with,flag\.Bool..update.))"; \
	if [ -n "$$golden" ]; then echo "go test -update" $$golden; $(GO) test -count=1 $$golden -update; fi
	@unformatted="$$(git ls-files -z -co --exclude-standard '*.go' | xargs -0 gofmt -l)"; \
	if [ -n "$$unformatted" ]; then echo "not gofmt'd:" $$unformatted >&2; exit 1; fi
	@($(WORKTREE)) > $(CACHE)/after
	@diff $(CACHE)/before $(CACHE)/after || { echo "the files above were out of date: commit them" >&2; exit 1; }

.PHONY: clean
clean: ## Remove what make made
	rm -rf bin $(CACHE)
