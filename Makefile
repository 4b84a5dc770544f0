# Two commands, each of which sets itself up in .venv:
#   make try     reads a text of more than 100,000 tokens through a memory of 1,024, and answers;
#                it fetches the best model below 500 MB that fits this machine, if that can be
#                reached, and says which
#   make test    everything that has to hold: ruff, mypy, pytest
# And four that fetch more:
#   make real    fetches a small pretrained model (93 MB) and runs the tests that need one
#   make docs    the help pages and the documentation site, in build/docs
#   make kvpress a Python with kvpress in .venv-kvpress, for `python docs/research/lab/speed.py --against kvpress`
#   make llamacpp the same with llama.cpp in .venv-llamacpp, for `--against llamacpp`

VENV := .venv
BIN := $(VENV)/bin
# One more than two cores: some tests wait for a server or another process.
JOBS ?= 3
# pip says errors and nothing else: what it warns of is the machine's other indexes.
QUIET := -qq --disable-pip-version-check
# The same number for every Python's reference: which facts are planted depends on it.
PLANT := --facts 60 --seed 7
# The planted fact nearest the middle of the text.
ASK := When did Xavier Rundesh arrive in Ladlawick?
# One that the reference itself answers.
NATURAL := Which exception does an assert statement raise?
# The first Python that is new enough and can make a virtual environment.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	2>/dev/null && echo "$$python" && break; done)

.PHONY: try test real docs kvpress llamacpp clean

# The Python language reference, which every Python carries, with made-up facts planted in it.
# With --method, pocket reads all of the text; without it, a word search does, if reader was fetched.
try: $(VENV)/.installed build/reference.txt
	@$(BIN)/python -c "from kvstream.api.models import best_model; best = best_model(most=5e8); \
		name = best.name if best else 'pocket'; print(name, file=open('build/model.txt', 'w')); \
		print(f'The best model below 500 MB that fits this machine is {name}.')"
	@$(BIN)/kvstream models get "$$(cat build/model.txt)" || { echo pocket > build/model.txt; \
		echo "Going on with pocket, which is in the package."; }
	@$(BIN)/kvstream sample --into build/reference.txt $(PLANT) \
		-o build/planted.txt --questions build/questions.jsonl
	@$(BIN)/python -c "import json; facts = map(json.loads, open('build/questions.jsonl')); \
		fact = next(f for f in facts if f['question'] == '$(ASK)'); \
		print(fact['question'], file=open('build/question.txt', 'w')); \
		print(fact['sentence'], file=open('build/planted-fact.txt', 'w'))"
	$(BIN)/kvstream ask build/planted.txt -Q "$$(cat build/question.txt)" -Q "$(NATURAL)" \
		-m "$$(cat build/model.txt)" --budget 1k --method infinipot
	@echo "Planted: $$(cat build/planted-fact.txt)"

test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist loadfile

# llama.cpp's token ids are compared where KVSTREAM_TEST_LLAMACPP names a Python with xllamacpp.
real: $(VENV)/.installed-test
	$(BIN)/kvstream models get smollm2
	OMP_NUM_THREADS=1 $(BIN)/pytest -m real

# The help pages, which a test compares with the program, and a site of all pages. Broken links fail.
docs: $(VENV)/.installed-docs
	$(BIN)/python tests/support/help_pages.py docs/reference/help.md
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

build/reference.txt: $(VENV)/.installed
	@mkdir -p build
	@$(BIN)/python -c "import pydoc_data.topics as t; print(*t.topics.values(), sep='\n\n')" > $@

# kvpress wants an older transformers, so it lives in a virtual environment of its own.
kvpress: $(VENV)-kvpress/.installed
	@echo "$(CURDIR)/$(VENV)-kvpress/bin/python"

$(VENV)-kvpress/.installed:
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed, with its venv module." >&2; exit 1; fi
	@test -x $(VENV)-kvpress/bin/python || $(PYTHON) -m venv $(VENV)-kvpress
	$(VENV)-kvpress/bin/pip install $(QUIET) 'kvpress>=0.5.5' psutil 'torch<2.14'
	@touch $@

# The prebuilt llama.cpp, apart from what kvstream needs.
llamacpp: $(VENV)-llamacpp/.installed
	@echo "$(CURDIR)/$(VENV)-llamacpp/bin/python"

$(VENV)-llamacpp/.installed:
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed, with its venv module." >&2; exit 1; fi
	@test -x $(VENV)-llamacpp/bin/python || $(PYTHON) -m venv $(VENV)-llamacpp
	$(VENV)-llamacpp/bin/pip install $(QUIET) xllamacpp gguf psutil
	@touch $@

$(VENV)/.installed: pyproject.toml
	$(call make_venv)
	$(BIN)/pip install $(QUIET) -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml
	$(call make_venv)
	$(BIN)/pip install $(QUIET) -e '.[test]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(VENV)/.installed-test
	$(BIN)/pip install $(QUIET) -e '.[docs]'
	@touch $@

define make_venv
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed, with its venv module." >&2; exit 1; fi
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
endef

clean:
	rm -rf build .pytest_cache .ruff_cache .mypy_cache .hypothesis
