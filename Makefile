# Everything here needs Go and git. Targets that need Redis, Postgres or Prometheus start
# their own servers in temporary folders. If a program is missing, the tests, specs,
# benchmarks, demo-full and playground install it with apt-get, once and if they may;
# demo-redis only names it. INSTALL_MISSING asks them to: go test alone installs nothing,
# and neither does make INSTALL_MISSING= test.

SHELL := /bin/bash
.DEFAULT_GOAL := help

GO    ?= go
CACHE := .cache

# Read by internal/debian and kong/servers.sh.
export INSTALL_MISSING ?= 1

# The file for the table of the chaos specs.
export CHAOS_TABLE := $(CURDIR)/$(CACHE)/chaos.md

COUNT    ?= 1
BENCH    ?= .
FUZZTIME ?= 10s
SOAK     ?= 10m
RUNS     ?= 3
BUSY     ?= 8
TIMEOUT  ?= 20m
PACKAGES ?= 4
LISTEN   ?= 127.0.0.1:8000

BENCHSTAT := golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da

PARITY_STEPS   ?= 2000000
MEMORY_BUCKETS ?= 10000000

# Go has no race detector without a C compiler. Without one the tests print
# a warning, and fail in CI.
CGO  := $(shell $(GO) env CGO_ENABLED)
RACE := $(if $(filter 1,$(CGO)),-race)

# The race detector reports a race when it finds it. By default a process with the race detector also sleeps for a second at its end.
export GORACE := atexit_sleep_ms=50 $(GORACE)

# The linter is rebuilt for another version of Go, because it reads its standard library.
LINT_PIN := .ci/golangci-lint
LINT     := $(CACHE)/bin/golangci-lint-$(shell $(GO) env GOVERSION)

UNIT = $$($(GO) list ./... | grep -v '/spec\(/\|$$\)')

GO_FILES = --include='*.go' --exclude-dir=.git --exclude-dir=$(CACHE)
TESTS    = --include='*_test.go' --exclude-dir=.git --exclude-dir=$(CACHE)

# $(call packages_with,PATTERN): the folders whose tests have a line like PATTERN.
packages_with = $(call folders_with,$(TESTS),$(1))

# $(call folders_with,FILES,PATTERN): the folders of files with a line like PATTERN.
folders_with = grep -rlE $(1) '$(2)' . | xargs -r -n1 dirname | sort -u

# The packages whose code starts goroutines, or has channels, locks or atomics. The specs run programs, not goroutines.
CODE        = $(GO_FILES) --exclude='*_test.go'
CONCURRENCY = ^\s*go (func|[a-zA-Z.]+)\(|\.Go\(|sync\.(Mutex|RWMutex|Map|Cond|WaitGroup|Pool)|atomic\.|make\(chan
CONCURRENT  = $$($(call folders_with,$(CODE),$(CONCURRENCY)) | grep -v '^./spec')

# The checksums of all files that git would commit.
WORKTREE = git ls-files -z -co --exclude-standard | xargs -0 cksum 2>/dev/null || true

# $(call gotest,LOG,ARGUMENTS): the whole output goes to a file, the important part
# to the terminal. A skipped test is listed, and fails in CI: its promise is unchecked. The linter
# runs all analyzers of go vet.
define gotest
@mkdir -p $(CACHE)
@echo "go test: $(1)"
@set -o pipefail; $(GO) test -v -vet=off -ldflags=-w $(2) 2>&1 | tee $(CACHE)/$(1).log \
	| grep -avE '^=== |^ *--- PASS|^PASS$$|\[rapid\] OK|no test files'
@if grep -aqE '^ *--- SKIP' $(CACHE)/$(1).log && [ -n "$${CI:-}" ]; then \
	echo "skipped tests fail in CI (whole log: $(CACHE)/$(1).log)" >&2; exit 1; fi
endef

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Programs and tests are compiled alike, so that they share the build cache, wherever the sources are. Debug information
# costs a sixth of the time to compile.
ALIKE := -trimpath -gcflags=all=-dwarf=false
BUILD  = CGO_ENABLED=0 $(GO) build $(ALIKE) -ldflags='-s -w'

unit spec race chaos: export GOFLAGS += $(ALIKE)
unit spec: export CGO_ENABLED := 0

.PHONY: build
build: ## Build the plugin server, the operator's program and the demo gateway into ./bin
	@echo "building plugin, ratelimit and demo gateway: some minutes the first time, then seconds"
	$(BUILD) -o bin/ ./plugin/cmd/tenant-rate-limiting ./plugin/cmd/ratelimit ./kong/cmd/demo-gateway

# Only what the demos without a database run, and without the client of Kafka, which no demo has: see plugin/events/kafka.
.PHONY: build-demo
build-demo:
	@echo "building plugin and demo gateway: a minute or two the first time, then seconds"
	$(BUILD) -tags nokafka -o bin/demo/ ./plugin/cmd/tenant-rate-limiting ./kong/cmd/demo-gateway

DEMO = bin/demo/demo-gateway -plugin bin/demo/tenant-rate-limiting

# $(call with_redis,COMMAND): runs a command with a Redis of its own, whose socket is $$redis.
define with_redis
@command -v redis-server >/dev/null || { echo "redis-server is missing: apt-get install redis-server" >&2; exit 1; }
@dir="$$(mktemp -d)"; redis="$$dir/redis.sock"; \
redis-server --port 0 --unixsocket "$$redis" --save '' --appendonly no --dir "$$dir" >"$$dir/log" & \
pid=$$!; trap 'kill $$pid; wait $$pid; rm -rf "$$dir"' EXIT; \
until [ -S "$$redis" ]; do kill -0 $$pid || exit 1; done; \
$(1)
endef

.PHONY: demo
demo: build-demo ## Play a session through gateway and plugin, then stay up (ONCE=1: then exit)
	$(DEMO) -config kong/kong.yml -listen $(LISTEN) -session $(if $(filter 1,$(ONCE)),-once)

.PHONY: demo-redis
demo-redis: build-demo ## Play the session with the counters in a Redis of its own (needs redis-server)
	$(call with_redis,to="redis\n\1redis:\n\1  socket: $$redis\n\1  send_timeout: 1000\n\1  read_timeout: 1000"; \
		sed "s|^\( *\)strategy: local$$|\1strategy: $$to|" kong/kong.yml >"$$dir/kong.yml"; \
		$(DEMO) -config "$$dir/kong.yml" -listen $(LISTEN) -session $(if $(filter 1,$(ONCE)),-once))

# 20 chats at once: the session fails if reservations do not keep the budget, or if counting after the answer does.
.PHONY: demo-llm
demo-llm: build-demo ## Spend 1 USD by 20 chats at once with two models, with reservations and without, then exit
	$(DEMO) -config kong/kong-llm.yml -listen 127.0.0.1:0 -chats

.PHONY: demo-full
demo-full: build ## Change limits at run time, and stop Postgres, with its own Redis and Postgres (ONCE=1: then exit)
	LISTEN=$(LISTEN) ONCE=$(ONCE) kong/demo-full.sh

.PHONY: playground
playground: build ## Start a Redis, a Postgres and a gateway with the plugin, to follow the docs with
	@LISTEN=$(LISTEN) kong/playground.sh up

.PHONY: playground-stop
playground-stop: ## Stop the playground
	@kong/playground.sh down

# The specs wait for most of their time, so they run beside the unit tests.
.PHONY: test
test: ## Run unit tests and specs; nothing may be skipped in CI
	@$(MAKE) --no-print-directory -j2 unit spec

# Cached results would prove nothing. Beside 8 busy processes a package takes about five times as long, which must not
# end its tests. The busy processes end with the target.
.PHONY: test-busy
test-busy: ## Run make test RUNS (3) times beside BUSY (8) processes that keep the processors busy
	@for i in $$(seq $(BUSY)); do sh -c 'while :; do :; done' & pids="$$pids $$!"; done; \
	trap 'kill $$pids' EXIT; \
	for run in $$(seq $(RUNS)); do \
		echo "run $$run of $(RUNS), beside $(BUSY) busy processes"; SECONDS=0; \
		$(MAKE) --no-print-directory test UNCACHED=-count=1 TIMEOUT=60m PACKAGES=8 || exit 1; \
		echo "run $$run is green after $$SECONDS s"; \
	done

# Most of these processes live for seconds and have room, so they collect garbage less often.
unit race: export GOGC := 400
.PHONY: unit
unit: ## Run only the unit tests (TIMEOUT=20m for a package)
	$(call gotest,unit,-timeout $(TIMEOUT) -p $(PACKAGES) $(UNCACHED) $(UNIT))

.PHONY: spec
spec: ## Run only the specs: the built programs, from outside
	$(call gotest,spec,-timeout $(TIMEOUT) -count=1 -parallel 32 -skip '^TestChaos' ./spec/...)

# Tests that compute in one goroutine for long, or wait for a browser. The race detector makes them many times as slow,
# and has nothing to find.
ALONE = ADamagedForeignOrHugeCopy ARowOfAMillion EveryAnswerMatchesItsDescription EveryPageIsRightOnEveryScreen \
	EveryPeriodOfTenYears GraphsAnswerToThePointer NoBucketAdmitsTooMuch SoakEveryCutAndEveryFlippedBit \
	SoakLeasesDenyHardlyMore SoakNodesGetOfAScarceBucket SoakWhatRequestsNeed ThePublishedDescriptionIsThatOf \
	UsageIsPrinted WhatAFormStoresNeverBecomesMarkup

# Under the race detector tests take about three times as long. Promises are checked without it, by make test.
.PHONY: race
race: ## Run the tests of concurrent code with the race detector
ifeq ($(RACE),)
	@echo "the race detector needs a C compiler" >&2; exit 1
endif
	$(call gotest,race,$(RACE) -timeout $(TIMEOUT) -p $(PACKAGES) $(UNCACHED) -skip "^Test($$(tr ' ' '|' <<<'$(ALONE)'))" $(CONCURRENT))

# The specs wait for most of their time, so some run at once. The processes that they kill have the race detector.
.PHONY: chaos
chaos: ## Inject faults into single nodes and into a fleet, under load, and print their effects
	@rm -f $(CACHE)/chaos.md
	$(call gotest,chaos,$(RACE) -timeout 10m -count=1 -parallel 5 -run '^TestChaos|^TestSoakTheLastToken' ./spec)
	@cat $(CACHE)/chaos.md

# The numbers of docs/benchmarks.md are those of one run.
.PHONY: bench
bench: ## Measure decisions, with other limiters, through the socket and on several nodes (12 min)
	@mkdir -p $(CACHE)
	@set -o pipefail; { $(GO) test -run '^$$' -bench . -timeout 30m ./internal/bench/compare \
		&& $(GO) test -run '^$$' -bench BelowTheLimit -benchtime 1x -timeout 30m ./plugin/bucket/lease \
		&& $(GO) test -run '^$$' -bench 'Socket|Settling|Denial|AddedLatency|Accuracy|HotTenant|Flood|HostileBodies' -benchtime 1x -timeout 30m ./spec; } | tee $(CACHE)/bench.txt
	@$(GO) run $(BENCHSTAT) result=$(CACHE)/bench.txt

.PHONY: bench-usage
bench-usage: ## Measure the usage history of 10,000 tenants, in a Postgres on the disk (8 min)
	@mkdir -p $(CACHE)
	@set -o pipefail; PGTEST_DURABLE=1 $(GO) test -run '^$$' -bench HistoryOfManyTenants -benchtime 1x -timeout 60m \
		./plugin/leader/usage | tee $(CACHE)/bench-usage.txt
	@$(GO) run $(BENCHSTAT) result=$(CACHE)/bench-usage.txt

.PHONY: bench-portal
bench-portal: ## Measure every page of the portal with 10,000 tenants, in a Postgres on the disk (4 min)
	@mkdir -p $(CACHE)
	@set -o pipefail; PGTEST_DURABLE=1 $(GO) test -run '^$$' -bench Pages -benchtime 1x -timeout 60m ./plugin/control/portal \
		| tee $(CACHE)/bench-portal.txt
	@$(GO) run $(BENCHSTAT) result=$(CACHE)/bench-portal.txt

# BENCH_KONG has further flags: see bin/bench-kong -help. A Kong needs the routes of bin/bench-kong -print-config first.
BENCH_ROUTES = $(CACHE)/bench-kong.yml

.PHONY: bench-kong
bench-kong: build ## Measure the plugin behind a Kong (KONG=http://HOST:PORT REDIS=HOST:PORT), or behind the stand-in
	$(BUILD) -o bin/ ./kong/cmd/bench-kong ./internal/bench/bench-floor
ifdef KONG
	bin/bench-kong -proxy $(KONG) $(if $(REDIS),-redis $(REDIS)) $(BENCH_KONG)
else
	$(call with_redis,rows="-redis $$redis -skip kong"; mkdir -p $(CACHE); \
		bin/bench-kong $$rows -print-config -upstream http://answer.internal >$(BENCH_ROUTES) || exit; \
		bin/demo-gateway -config $(BENCH_ROUTES) -listen $(LISTEN) -workers 1 -plugin bin/bench-floor \
			-plugin 'bin/tenant-rate-limiting -denial-log $(CACHE)/bench-denials.jsonl' >/dev/null & gateway=$$!; \
		bin/bench-kong $$rows -proxy http://$(LISTEN) -process "redis=^redis-server .*$$redis" $(BENCH_KONG); \
		status=$$?; kill $$gateway; exit $$status)
endif

# DOORS=-short takes seconds: it shows that both answer, not how fast.
.PHONY: bench-doors
bench-doors: ## Measure the door for Envoy beside envoyproxy/ratelimit, each with a Redis (3 min; DOORS=-short)
	@mkdir -p $(CACHE)/bin
	$(BUILD) -o $(CACHE)/bin/ratelimit ./plugin/cmd/ratelimit
	cd .ci/envoy-ratelimit && $(BUILD) -o '$(CURDIR)/$(CACHE)/bin/envoy-ratelimit' tool
	@RATELIMIT='$(CURDIR)/$(CACHE)/bin/ratelimit' ENVOY_RATELIMIT='$(CURDIR)/$(CACHE)/bin/envoy-ratelimit' \
		$(GO) test -v -tags doors -count=1 -timeout 10m $(DOORS) ./internal/bench/doors

# Both programs measure each benchmark once in every round. Choose few: what else runs on the machine changes in seconds.
.PHONY: bench-before
bench-before: BEFORE    ?= HEAD~1
bench-before: PACKAGE   ?= internal/bench/compare
bench-before: ROUNDS    ?= 6
bench-before: BENCHTIME ?= 1s
bench-before: ## Compare this tree with a commit, in turns (BEFORE=commit PACKAGE=folder BENCH=regexp ROUNDS=n BENCHTIME=1s)
	@mkdir -p $(CACHE)/before
	@set -e; tree=$$(mktemp -d); trap 'git worktree remove --force "$$tree/before" || true; rm -rf "$$tree"' EXIT; \
	git worktree add -q --detach "$$tree/before" $(BEFORE); ln -s "$(CURDIR)" "$$tree/after"; \
	for which in before after; do \
		(cd "$$tree/$$which" && $(GO) test -c -o '$(CURDIR)/$(CACHE)'/before/$$which.test ./$(PACKAGE)); \
		>$(CACHE)/before/$$which.txt; \
	done; \
	for round in $$(seq $(ROUNDS)); do for which in $$( ((round % 2)) && echo before after || echo after before); do \
		echo "round $$round: $$which" >&2; \
		(cd "$$tree/$$which/$(PACKAGE)" && '$(CURDIR)/$(CACHE)'/before/$$which.test -test.run '^$$' -test.timeout 60m \
			-test.bench '$(BENCH)' -test.benchtime $(BENCHTIME)) >>$(CACHE)/before/$$which.txt; \
	done; done; \
	grep -q ^Benchmark $(CACHE)/before/after.txt || { echo "$(PACKAGE) has no benchmark like '$(BENCH)'" >&2; exit 1; }; \
	$(GO) run $(BENCHSTAT) before=$(CACHE)/before/before.txt after=$(CACHE)/before/after.txt

.PHONY: bench-packages
bench-packages: ## Run every package's own benchmarks, with allocations (BENCH=regexp COUNT=n)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) -timeout 30m \
		$$($(call packages_with,^func Benchmark) | grep -v internal/bench/compare)

# With -short, benchmarks of long tables have few rows and turns: it shows that they measure, not what. One that prints
# no result, or only NaN and 0 ns/op, measures nothing.
.PHONY: bench-once
bench-once: ## Run every benchmark once, in its short form, and fail if one measures nothing
	@mkdir -p $(CACHE)
	@echo "go test -bench . -benchtime 1x -short"
	@set -o pipefail; $(GO) test -short -vet=off -ldflags=-w -run '^$$' -bench . -benchtime 1x -timeout $(TIMEOUT) \
		$$($(call packages_with,^func Benchmark)) >$(CACHE)/bench-once.log 2>&1 \
		|| { grep -avE '^(Benchmark|goos|goarch|cpu|pkg|ok|PASS)' $(CACHE)/bench-once.log >&2; exit 1; }
	@grep -rnoE $(TESTS) '^func Benchmark\w+' . | awk -v module="$$($(GO) list -m)" ' \
		FNR == NR && /^pkg: / { pkg = $$2; sub(module, ".", pkg) } \
		FNR == NR && /^Benchmark/ { split($$1, name, /[^A-Za-z0-9_]/); \
			for (i = 3; i < NF; i += 2) \
				if ($$i ~ /[1-9]/ || $$i ~ /[0-9]/ && $$(i + 1) != "ns/op") measured[pkg, name[1]] = 1 } \
		FNR < NR { split($$0, at, /:[0-9]+:func /); sub(/\/[^\/]*$$/, "", at[1]); \
			if (!((at[1], at[2]) in measured)) { print "measures nothing: " at[1] " " at[2]; red = 1 } } \
		END { exit red }' $(CACHE)/bench-once.log - >&2

# Compare numbers of one run on one machine only.
.PHONY: bench-redis
bench-redis: ## Measure the cost of a decision for Redis and for the caller
	$(GO) test -run '^$$' -bench . -timeout 30m ./plugin/bucket/redis

.PHONY: bench-memory
bench-memory: ## Measure the memory of buckets in Redis: each kind, and MEMORY_BUCKETS (10000000) of all kinds
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

# A Soak test runs in its long form if the environment has SOAK, else in a short one (internal/soak).
.PHONY: soak
soak: ## Run the Soak tests and specs in their long form, for SOAK (10m) each
	@mkdir -p $(CACHE)
	set -o pipefail; SOAK=$(SOAK) $(GO) test -v $(RACE) -count=1 -p 1 -timeout 0 -run Soak \
		$$($(call packages_with,^func TestSoak)) 2>&1 | tee $(CACHE)/soak.log
	@grep -q '^=== RUN' $(CACHE)/soak.log || { echo "no Soak test ran" >&2; exit 1; }

# The seed is printed; SEED=n plays the same faults in the same order.
.PHONY: soak-fleet
soak-fleet: ## Churn eight nodes, a cluster, Postgres and the control server for SOAK (10m), and compare every ledger
	@mkdir -p $(CACHE)
	@set -o pipefail; SOAK=$(SOAK) $(GO) test -v -count=1 -timeout 0 -run '^TestChaosSoak' ./spec 2>&1 \
		| tee $(CACHE)/soak-fleet.log

.PHONY: lint
lint: $(LINT) ## Lint: purity, correctness, words, line length, format
	GOLANGCI_LINT_CACHE=$(CURDIR)/$(CACHE)/golangci-lint $(LINT) run ./...

# FreeType is used by the first of its two licenses, which the tool does not know: see .ci/release/notices.tpl.
LICENSES = Apache-2.0,BSD-2-Clause,BSD-3-Clause,ISC,MIT

.PHONY: licenses
licenses: ## Fail if anything compiled into the programs or the Go library has a license other than LICENSES
	@$(GO) build -C .ci/release -trimpath -ldflags '-s -w' -o $(CURDIR)/$(CACHE)/bin/ github.com/google/go-licenses/v2
	@GOROOT=$$($(GO) env GOROOT) $(CACHE)/bin/go-licenses check ./plugin/cmd/... ./plugin/limiter/... \
		--ignore $$($(GO) list -m) --ignore github.com/golang/freetype --allowed_licenses=$(LICENSES) 2>$(CACHE)/licenses.log \
		|| { grep -v '^W\|^/' $(CACHE)/licenses.log >&2; exit 1; }
	@echo "licenses are among $(LICENSES)"

# Without VULNDB it is the database that .ci/vuln pins: to renew it, go get golang.org/x/vulndb@latest there.
.PHONY: vuln
vuln: ## Fail if the code calls anything with a known vulnerability (VULNDB=https://vuln.go.dev: the newest list)
	@mkdir -p $(CACHE)/bin
	$(GO) build -C .ci/vuln -trimpath -ldflags '-s -w' -o $(CURDIR)/$(CACHE)/bin/ tool
	@set -e; db="$(VULNDB)"; if [ -z "$$db" ]; then \
		db=$(CURDIR)/$(CACHE)/vulndb; module=$$(cd .ci/vuln && $(GO) list -m -f '{{.Dir}}' golang.org/x/vulndb); \
		rm -rf "$$db"; $(CACHE)/bin/indexdb -vulns "$$module/data/osv" -out "$$db"; db=file://$$db; \
	fi; \
	echo "govulncheck with $$db and $$($(GO) env GOVERSION)"; \
	$(CACHE)/bin/govulncheck -db "$$db" ./plugin/cmd/... ./plugin/limiter/...

.PHONY: fmt
fmt: $(LINT) ## Format the Go files
	$(LINT) fmt ./...

$(LINT): $(LINT_PIN)/go.mod $(LINT_PIN)/go.sum
	@echo "building golangci-lint: a minute or two, once"
	$(GO) build -C $(LINT_PIN) -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ tool

# The first time on a machine this fetches and compiles Helm and the API of Kubernetes, which takes some minutes.
.PHONY: chart
chart: build ## Render the Helm chart, check it by Kubernetes' OpenAPI, and run the commands of its pods
	cd kong/helm && $(GO) test -vet=off -ldflags=-w -count=1 ./...

# The target compares the tree before and after, so it also works before a commit. Golden files are compared by make test.
.PHONY: verify
verify: bench-once ## Run every benchmark once, regenerate everything generated, and fail if anything was out of date
	@git rev-parse --is-inside-work-tree > /dev/null
	@mkdir -p $(CACHE)
	@($(WORKTREE)) > $(CACHE)/before
	$(GO) generate ./...
	$(GO) mod tidy -diff
	@unformatted="$$(git ls-files -z -co --exclude-standard '*.go' | xargs -0 gofmt -l)"; \
	if [ -n "$$unformatted" ]; then echo "not gofmt'd:" $$unformatted >&2; exit 1; fi
	@($(WORKTREE)) > $(CACHE)/after
	@diff $(CACHE)/before $(CACHE)/after || { echo "the files above were out of date: commit them" >&2; exit 1; }

.PHONY: golden
golden: ## Rewrite the golden files of tests, after a change of what they show
	$(GO) test -count=1 $$($(call packages_with,internal/golden"|flag\.Bool..update.)) -update

# Of every page, on two widths, light and dark, over a month of requests of eleven tenants.
.PHONY: screenshots
screenshots: ## Renew the screenshots of all pages of the portal, in docs/img/pages, and the list of them
	rm -rf $(CACHE)/screenshots && mkdir -p $(CACHE)/screenshots
	SCREENSHOTS=$(CURDIR)/$(CACHE)/screenshots $(GO) test -count=1 -timeout 30m -run '^Test(EveryPageIsRightOnEveryScreen|UsageIsPrinted)$$' \
		./plugin/control/portal
	rm -rf docs/img/pages && mkdir -p docs/img/pages
	cp $(CACHE)/screenshots/*.webp docs/img/pages/
	cp $(CACHE)/screenshots/screenshots.md docs/

.PHONY: zones
zones: ## Take over the time zones of this Go
	@from="$$($(GO) env GOROOT)/lib/time" && cp "$$from/zoneinfo.zip" plugin/core/calendar/ && \
	sed -n 's/^DATA=//p' "$$from/update.bash" | tr -d '\n' > plugin/core/calendar/zoneinfo.version

RELEASE = BUILD="$(BUILD)" .ci/release/build

.PHONY: release
release: ## Build archives, .deb packages, an OCI image, SBOM and checksums of the last commit into dist/ (ARCHES, OUT)
	@$(RELEASE)

# It needs dpkg, and root for what runs in the unpacked image.
.PHONY: release-check
release-check: build ## Build a release for this architecture, install, upgrade and remove its packages, run its image
	@ARCHES=$$($(GO) env GOHOSTARCH) OUT=$(CACHE)/release/dist $(RELEASE)
	cd .ci/release && $(GO) test -v -count=1 -timeout 5m . | grep -avE "^=== |^ok"; exit $${PIPESTATUS[0]}

# The second clone has an empty build cache.
.PHONY: release-twice
release-twice: ## Build a release in two clones of the last commit, and compare the bytes (10 min)
	@set -e; dir=$$(mktemp -d); trap 'chmod -R +w "$$dir"; rm -rf "$$dir"' EXIT; \
	for clone in one two/deeper; do \
		git clone -q . "$$dir/$$clone"; $(MAKE) --no-print-directory -C "$$dir/$$clone" release OUT="$$dir/out-$${clone%/*}"; \
		export GOCACHE="$$dir/cache"; \
	done; \
	diff -r "$$dir/out-one" "$$dir/out-two"; cat "$$dir/out-one/SHA256SUMS"; echo "both releases have the same bytes"

.PHONY: clean
clean: ## Remove all built files
	rm -rf bin dist $(CACHE)
