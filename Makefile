# SPDX-License-Identifier: Apache-2.0
# Set-up, build and checks, all through scripts/setup.sh, which also lists the
# variables it understands (make test JOBS=2 TESSERA_TORCH=/opt/libtorch).
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build demo test check lint format tidy clean distclean

tessera := build/release/bin/tessera

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | \
	  awk -F '\t' '{ printf "  make %-10s %s\n", $$1, $$2 }'

setup: ## install what is missing: Debian packages, .venv, LibTorch, the model
	@scripts/setup.sh setup

build: ## set up, configure and build everything
	@scripts/setup.sh build

demo: ## build, then fine-tune a BERT over two sharded ranks (two to five minutes after the build)
	@scripts/setup.sh build tessera
	$(tessera) launch --nproc 2 -- $(tessera) train \
	  configs/finetune_minilm.json output.folder=runs/demo output.overwrite=true

test: ## build everything and run the tests
	@scripts/setup.sh test

check: ## build one room and run its tests: make check ROOM=sharding
	@[[ -n '$(ROOM)' ]] || { echo 'make check ROOM=sharding: name a folder of tests/ with C++ tests' >&2; exit 2; }
	@scripts/setup.sh build $(ROOM)_tests
	@PATH="$(CURDIR)/.venv/bin:$$PATH" ctest --preset release -L '^$(ROOM)$$' --no-tests=error

lint: ## check formatting, file headers, and includes between the rooms
	@scripts/setup.sh tools
	@scripts/lint.sh

format: ## format all C++ and CUDA files
	@scripts/setup.sh tools
	@scripts/lint.sh --format

tidy: ## run clang-tidy over the sources (slow)
	@scripts/tidy.sh

clean: ## remove everything that was built
	rm -rf build

distclean: clean ## remove everything that was built or installed here
	rm -rf .venv models
