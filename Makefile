# Everything sets up .venv first when it is missing or older than what it is made from.
PYTHON ?= python3.11
BIN := .venv/bin
# Compiled modules are kept, whatever the environment says: compiling them is most of what importing the tests costs.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-cluster test test-fast test-faults test-s3 test-kafka test-damage test-planted test-prometheus test-matrix test-cluster test-wheel test-browser test-systems tools-matrix dist mutants lint docs bench sim tools tools-s3 tools-s3a tools-azure tools-kafka tools-prometheus tools-browser java clean

demo: .venv/ready java
	@$(BIN)/cutwater demo

demo-cluster: .venv/ready java
	@$(BIN)/cutwater demo-cluster

test: .venv/ready java
	$(BIN)/pytest -n 3 --dist loadgroup -m "not faults and not s3 and not kafka and not damage and not matrix and not rare and not cluster and not wheel and not prometheus and not browser"

# Fewer random examples than in `make test`. Each process that runs tests has to import all of them, so there is one for
# each core.
test-fast: .venv/ready
	$(BIN)/pytest -n auto --maxprocesses 8 -m "not slow" --hypothesis-profile fast

# Real pipelines with store and tables on a real S3 server, killed and restored while requests fail. Needs `make tools`.
test-s3: .venv/ready java
	$(BIN)/pytest -m s3

# Pipelines that read a real Kafka broker, killed, restored, and confronted with topics that have lost records. Needs
# `make tools`.
test-kafka: .venv/ready java
	$(BIN)/pytest -m kafka tests/systems

# Every place at which a process can be killed, times every kind of pipeline: about an hour.
test-faults: .venv/ready java
	$(BIN)/pytest -m faults

# Hundreds of damaged stores: each is seen by verify or does no harm.
test-damage: .venv/ready java
	$(BIN)/pytest -m damage

# Every planted bug, those that take the simulator hundreds of schedules to find among them: the best part of an hour.
test-planted: .venv/ready
	$(BIN)/pytest -n 2 tests/sim/test_planted_bugs.py

# What matters of Spark, with every other version of it: `make test-matrix`, or one of them: `make test-matrix-4.0`.
SPARKS := 4.0 4.1 4.2
SPARK_4.0 := 4.0.5
SPARK_4.1 := 4.1.4
SPARK_4.2 := 4.2.1
# Each with another version of Python, where there is one: as a command, or with pyenv.
PYTHON_4.0 := 3.11
PYTHON_4.1 := 3.12
PYTHON_4.2 := 3.13
other_python = for python in python$(1) $$(ls $$(pyenv root 2>/dev/null)/versions/$(1).*/bin/python 2>/dev/null) $(PYTHON); do \
	$$python -c "import venv" 2>/dev/null && break; done; $$python

test-matrix: $(SPARKS:%=test-matrix-%)

test-matrix-%: .tools/spark-%/ready java
	.tools/spark-$*/bin/pytest -m matrix tests/matrix

tools-matrix: $(SPARKS:%=.tools/spark-%/ready)

# An environment per version: the dependencies of the project as they are pinned, except for Spark.
.tools/spark-%/ready: pyproject.toml constraints.txt
	$(call other_python,$(PYTHON_$*)) -m venv .tools/spark-$*
	sed 's/^pyspark==.*/pyspark==$(SPARK_$*)/' constraints.txt > .tools/spark-$*/constraints.txt
	.tools/spark-$*/bin/pip install --quiet --disable-pip-version-check --constraint .tools/spark-$*/constraints.txt --editable '.[dev]'
	@touch $@

# A pipeline on a Spark standalone cluster of three processes, through spark-submit; driver and worker are killed.
test-cluster: .venv/ready java
	$(BIN)/pytest -m cluster

# The wheel, installed in an environment of its own, outside of this folder.
test-wheel: .venv/ready java
	$(BIN)/pytest -m wheel

# The page in a headless Chromium. Needs `make tools` once.
test-browser: .venv/ready
	$(BIN)/pytest -m browser tests/systems

# The alert rules and the dashboard, with a real Prometheus that scrapes a pipeline. Needs `make tools` once.
test-prometheus: .venv/ready
	$(BIN)/pytest -m prometheus

# Everything that needs a real neighbour: Kafka, S3, a Spark cluster, a browser, Prometheus, a clean environment. Needs
# `make tools` once.
test-systems: .venv/ready java
	$(BIN)/pytest -m "kafka or s3 or cluster or wheel or prometheus or browser"

# The wheel and the source distribution, in dist/.
dist: .venv/ready
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build

# Breaks the runtime in small ways, one at a time, and lists the breaks that no test notices. A sample; for more, or for
# one module: python -m tests.mutants --help
MUTANTS ?= --count 300

mutants: .venv/ready java
	$(BIN)/python -m tests.mutants --spark $(MUTANTS)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready
	$(BIN)/python -m tests.support.diagrams --write ARCHITECTURE.md
	$(BIN)/python -m tests.support.configuration --write docs/configuration.md
	$(BIN)/python -m tests.support.metrics_page --write docs/metrics.md

bench: .venv/ready
	$(BIN)/python -m bench.poll
	$(BIN)/python -m bench.quorum
	$(BIN)/python -m bench.takeover
	$(BIN)/python -m bench.replay
	$(BIN)/python -m bench.follow
	$(BIN)/python -m bench.schedules
	$(BIN)/python -m bench.overhead
	$(BIN)/python -m bench.checkpoint
	$(BIN)/python -m bench.snapshot
	$(BIN)/python -m bench.restore
	$(BIN)/python -m bench.epochs
	$(BIN)/python -m bench.s3_requests
	$(BIN)/python -m bench.page

sim: .venv/ready
	$(BIN)/python -m cutwater.sim --seeds 1000

# What the tests with buckets and Kafka need: servers, and Spark's way to them. Without one of them its tests are skipped,
# and say so. Needs Go, Maven and npm. The Kafka connector is that of Spark 4.2: there is none for 4.3 (docs/kafka.md).
S3A_JARS := org.apache.hadoop:hadoop-aws:3.5.0 software.amazon.awssdk:bundle:2.35.4 \
	software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1

KAFKA_JARS := org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \
	org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0 \
	org.apache.kafka:kafka-clients:3.9.2 org.apache.commons:commons-pool2:2.13.1

tools: tools-s3 tools-s3a tools-azure tools-kafka tools-prometheus tools-browser

tools-s3:
	GOBIN=$(CURDIR)/.tools/bin go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 \
		|| echo "no S3 server could be built; the tests that need one are skipped"

tools-s3a:
	( for jar in $(S3A_JARS); do mvn -q -B dependency:copy -Dartifact=$$jar -DoutputDirectory=$(CURDIR)/.tools/jars || exit 1; done ) \
		|| echo "Spark's way to S3 could not be fetched; the tests that need it are skipped"

tools-azure:
	npm install --silent --no-audit --no-fund --prefix $(CURDIR)/.tools/azurite azurite@3.35.0 \
		|| echo "Azurite could not be installed; the tests that need it are skipped"

tools-kafka:
	( for jar in $(KAFKA_JARS); do mvn -q -B dependency:copy -Dartifact=$$jar -DoutputDirectory=$(CURDIR)/.tools/jars-kafka || exit 1; done \
		&& mvn -q -B -f tests/support/kafka_jars/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/.tools/kafka ) \
		|| echo "Kafka and Spark's way to it could not be fetched; the tests that need them are skipped"

# Debian's package, unpacked without installing it: no service is started, and no root is needed.
tools-prometheus:
	mkdir -p $(CURDIR)/.tools/prometheus
	( cd $(CURDIR)/.tools/prometheus && apt-get update -qq; apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb ) \
		|| echo "Prometheus could not be fetched; the tests that need it are skipped"

tools-browser:
	command -v chromedriver >/dev/null || { apt-get update -qq; apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; } \
		|| echo "Chromium could not be installed (Debian: apt-get install chromium chromium-driver); the tests that need it are skipped"

java:
	@command -v java >/dev/null || [ -n "$$JAVA_HOME" ] || { echo "Spark needs Java 17 or later: install it (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME"; exit 1; }

.venv/ready: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or later is needed: install it (Debian: apt-get install python3.11 python3.11-venv) or say which one to use: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv dist build .mypy_cache .pytest_cache .ruff_cache
