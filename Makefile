# SPDX-License-Identifier: Apache-2.0
#
# Builds, tests and installs nvswap; `make help` lists the targets. Sources are found by wildcard, so
# a new file needs no line here. A variant of the build is another BUILD with other flags:
#	make BUILD=build/clang CC=clang
#	make BUILD=build/asan SANITIZE=address,undefined test

# Replace make's own default, cc, by gcc.
ifeq ($(origin CC),default)
CC := gcc
endif
OBJCOPY ?= objcopy
PKG_CONFIG ?= pkg-config
PYTHON ?= python3
# The tests of the Python package use numpy and cffi of Debian's Python.
DEBIAN_PYTHON ?= /usr/bin/python3
BUILD ?= build
SANITIZE ?=
CFLAGS ?= -O2 -g
# Compiling the tests with more optimisation takes longer than it saves when they run.
TEST_CFLAGS ?= $(patsubst -g,-g1,$(patsubst -O2,-O1,$(CFLAGS)))
# Without ccache: make CCACHE=
CCACHE ?= $(shell command -v ccache)
WERROR ?= -Werror
# ASSERTIONS=no leaves out those of the library and the command: their checks of their own state take
# a tenth to a fifth of their processor time.
ASSERTIONS ?= yes
JOBS ?= $(shell nproc)
# V=1 shows the command lines.
V ?=
Q := $(if $(V),,@)
say = $(if $(V),:,@printf '  %-8s %s\n' $1 $(or $2,$@))

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
COMPLETIONDIR ?= $(PREFIX)/share/bash-completion/completions
DESTDIR ?=

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# ---- Sources and targets

# The files $2 in the folder $1 and in its folders, three deep at most.
below = $(wildcard $(foreach depth,/ /*/ /*/*/ /*/*/*/,$(addprefix $1$(depth),$2)))
LIB_SOURCES := $(foreach layer,base trace config topo aio pool memory store swap optim checkpoint,$(call below,src/$(layer),*.c))
CLI_SOURCES := $(call below,src/cli,*.c)
TEST_SOURCES := $(call below,tests,test_*.c)
# A test compiles it itself.
TEST_COMPILED := $(wildcard tests/project/smaller/*.c)
# Tests that replace functions of libc or of the library, or see how large stacks are, are a program
# each; all others are one.
TEST_APART := $(addprefix tests/,aio/test_aio_submit.c aio/test_transfers.c base/test_stacks.c cli/modes/test_bench_blocks.c \
	optim/pass/test_optim_threads.c store/test_store.c \
	store/test_store_damage.c store/test_store_kept.c store/test_store_pairs.c store/test_store_threads.c store/test_store_units.c \
	swap/test_swap_register.c swap/test_swap_scale.c)
TEST_TOGETHER := $(filter-out $(TEST_APART),$(TEST_SOURCES))
TEST_SUPPORT := $(filter-out tests/all.c $(TEST_SOURCES) $(TEST_COMPILED),$(call below,tests,*.c))
TEST_SCRIPTS := $(call below,tests,test_*.sh test_*.py)
PYTHON_TESTS := $(wildcard python/tests/test_py_*.py)
EXAMPLES := $(wildcard examples/*.c)
BENCH_SOURCES := $(wildcard bench/*.c)
BENCH_SUPPORT := $(wildcard bench/support/*.c)
FUZZ_SOURCES := $(wildcard fuzz/fuzz_*.c)
FUZZ_REPLAY := fuzz/replay.c
FUZZ_ALLOCATIONS := fuzz/allocations.c
DOCS_SOURCES := $(wildcard scripts/*.c)
HEADERS := $(wildcard include/*.h include/nvswap/*.h bench/support/*.h scripts/*.h) $(call below,src,*.h) $(call below,tests,*.h)
C_SOURCES := $(LIB_SOURCES) $(CLI_SOURCES) $(TEST_SUPPORT) tests/all.c $(TEST_SOURCES) $(TEST_COMPILED) $(BENCH_SOURCES) \
	$(BENCH_SUPPORT) $(EXAMPLES) $(FUZZ_SOURCES) $(FUZZ_REPLAY) $(FUZZ_ALLOCATIONS) $(DOCS_SOURCES)

# The version is written in the public header alone.
VERSION := $(shell sed -n 's/^.define NVS_VERSION[^_A-Z]*"\(.*\)"/\1/p' include/nvswap/version.h)
SONAME := libnvswap.so.$(firstword $(subst ., ,$(VERSION)))
SOFILE := libnvswap.so.$(VERSION)

# Calls that tests make fail; tests/support/inject.c defines a wrapper for each. With FORTIFY, libc's
# headers call checking functions instead (__asprintf_chk): these are wrapped too, so that the tests run
# the objects that are installed.
WRAPPED := malloc calloc realloc reallocarray aligned_alloc free strdup strndup asprintf vasprintf getline __getdelim tsearch \
	newlocale glob XXH3_createState hwloc_topology_init hwloc_topology_load hwloc_bitmap_alloc \
	mmap munmap memfd_create madvise mlock pthread_create open openat fopen fdopen realpath getrandom \
	mkdir mkdirat mkostemp rename renameat renameat2 unlinkat flock fchmod stat lstat fstat fstatat statx fstatfs \
	fstatvfs read pread pwrite fflush fclose posix_fallocate fallocate ftruncate fdatasync \
	fsync eventfd io_setup io_uring_queue_init io_uring_register_files \
	io_uring_register_files_update io_uring_register_buffers_sparse \
	io_uring_register_buffers_update_tag
WRAPPED += __asprintf_chk __vasprintf_chk __open_2 __openat_2 __realpath_chk __read_chk __pread_chk
# Where threads block; tests/support/turns.c lets them take turns there.
WRAPPED += pthread_join pthread_mutex_lock pthread_mutex_unlock pthread_cond_wait pthread_cond_timedwait \
	pthread_cond_clockwait pthread_cond_signal pthread_cond_broadcast sched_yield

LIB_OBJECTS := $(LIB_SOURCES:%.c=$(BUILD)/%.o)
# The tests link these layers with checks of whole states: see base/state_checks.h.
CHECKED_OBJECTS := $(if $(SANITIZE),,$(patsubst %.c,$(BUILD)/checked/%.o,$(filter src/aio/% src/pool/% src/swap/%,$(LIB_SOURCES))))
TESTED_OBJECTS := $(filter-out $(CHECKED_OBJECTS:$(BUILD)/checked/%=$(BUILD)/%),$(LIB_OBJECTS)) $(CHECKED_OBJECTS)
CLI_OBJECTS := $(CLI_SOURCES:%.c=$(BUILD)/%.o)
TEST_PROGRAMS := $(TEST_SOURCES:%.c=$(BUILD)/%)
SUPPORT_OBJECTS := $(TEST_SUPPORT:%.c=$(BUILD)/%.o)
BENCH_PROGRAMS := $(BENCH_SOURCES:%.c=$(BUILD)/%)
FUZZ_PROGRAMS := $(FUZZ_SOURCES:%.c=$(BUILD)/%)
REPLAY_PROGRAMS := $(FUZZ_SOURCES:fuzz/fuzz_%.c=$(BUILD)/fuzz/replay_%)
DOCS_OBJECTS := $(DOCS_SOURCES:%.c=$(BUILD)/%.o)
LIBRARIES := $(BUILD)/libnvswap.a $(BUILD)/libnvswap.so
# The Python package, for Debian's Python. With gcc's AddressSanitizer, python/tests/support/promises.py loads the
# runtimes into the interpreter first; with other sanitizers it can't be loaded.
PYTHON_RUNTIMES := $(if $(findstring address,$(SANITIZE)),$(wildcard \
	$(shell $(CC) -print-file-name=libasan.so) $(shell $(CC) -print-file-name=libubsan.so)))
PYTHON_PACKAGE = $(if $(PYTHON_RUNTIMES)$(if $(SANITIZE)$(SANITIZE_FLAGS),,none),$(BUILD)/python/nvswap/_native.abi3.so)

# ---- Flags

WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
	-Wcast-qual -Wwrite-strings -Wundef -Wvla -Wformat=2
SANITIZE_FLAGS := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all \
	-fno-omit-frame-pointer)
UNASSERTED := $(if $(filter no,$(ASSERTIONS)),-DNDEBUG -Wno-unused-parameter -Wno-unused-variable \
	-Wno-unused-but-set-variable -Wno-unused-function)
TESTS_UNASSERTED := $(if $(filter no,$(ASSERTIONS)),-DLIBRARY_UNASSERTED)
LANGUAGE := -std=gnu11 -D_GNU_SOURCE $(WARNINGS) $(WERROR)
INCLUDES_src := -Iinclude -Isrc
INCLUDES_tests := -Iinclude -Isrc -Itests
includes = $(INCLUDES_$(if $(filter tests/%,$1),tests,src))

# pkg-config runs when a variable is first used, because `make setup` must work without it.
PACKAGES := liburing hwloc libxxhash zlib
once = $(eval $1 := $2)$($1)
PACKAGE_CFLAGS = $(call once,PACKAGE_CFLAGS,$(shell $(PKG_CONFIG) --cflags $(PACKAGES)))
PACKAGE_LIBS = $(call once,PACKAGE_LIBS,$(shell $(PKG_CONFIG) --libs $(PACKAGES)) -laio -lm)
TEST_LIBS = $(call once,TEST_LIBS,$(shell $(PKG_CONFIG) --libs cmocka))

# Flags of single files. All kernels must give the same bits, so none may fuse operations. errno and
# floating-point traps are off because they prevent vectorisation.
MACHINE = $(call once,MACHINE,$(shell $(CC) -dumpmachine))
on_x86 = $(if $(filter x86_64-%,$(MACHINE)),$1)
KERNEL_FLAGS := -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math
FLAGS_src/optim/kernels/plain.c = $(KERNEL_FLAGS)
FLAGS_src/optim/kernels/avx2.c = $(KERNEL_FLAGS) $(call on_x86,-mavx2 -mf16c)
FLAGS_src/optim/kernels/avx512.c = $(KERNEL_FLAGS) $(call on_x86,-mavx512f)
FLAGS_bench/adam.c = -O3
# Its loops over all names are most of a fuzz target's time, and which letters differ is of no interest.
FLAGS_src/base/nearest.c = $(if $(findstring fuzzer,$(SANITIZE)),-fno-sanitize=all)

# Hardening, as far as the compiler has it for this machine; test_hardening reads it back. Libc's
# headers check buffers only where the compiler optimises, and sanitizers replace those checks.
accepts = $(shell printf '\043include <stdio.h>\n' | \
	$(CC) -O2 -Werror -U_FORTIFY_SOURCE $1 -x c -c -o /dev/null - 2>/dev/null && echo '$1')
FORTIFY = $(call once,FORTIFY,$(if $(SANITIZE)$(filter -O0,$(CFLAGS))$(findstring \
	_FORTIFY_SOURCE,$(CPPFLAGS)$(CFLAGS)),,$(and $(filter -O%,$(CFLAGS)),-U_FORTIFY_SOURCE \
	$(or $(call accepts,-D_FORTIFY_SOURCE=3),-D_FORTIFY_SOURCE=2))))
HARDENED = $(call once,HARDENED,$(foreach flag,-fstack-protector-strong -fstack-clash-protection \
	-fcf-protection -mbranch-protection=standard,$(call accepts,$(flag))))
HARDENED_LINK := -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack

# Objects do not depend on where the tree lies, so that ccache has them for other checkouts too.
PREFIX_MAP = -fdebug-prefix-map='$(CURDIR)'=.
# A test's main has the name by which tests/all.c calls it.
RENAMED = $(if $(filter $<,$(TEST_TOGETHER)),-Dmain=main_of_$(basename $(<F)) -Wno-missing-prototypes)
COMPILE = $(CCACHE) $(CC) $(LANGUAGE) $(call includes,$<) $(PACKAGE_CFLAGS) $(FORTIFY) $(HARDENED) $(CPPFLAGS) -fPIC \
	-fvisibility=hidden -pthread $(PREFIX_MAP) $(SANITIZE_FLAGS) $(if $(filter tests/%,$<),$(TEST_CFLAGS) $(RENAMED),$(CFLAGS)) \
	$(if $(filter src/%,$<),$(UNASSERTED),$(TESTS_UNASSERTED)) \
	$(if $(SANITIZE)$(filter tests/%,$<)$(filter $(BUILD)/checked/%,$@),-DSTATE_CHECKS=1) $(FLAGS_$<) -MMD -MP
LINK = $(CC) -pthread $(SANITIZE_FLAGS) $(CFLAGS) $(HARDENED_LINK) $(LDFLAGS)
LINK_PROGRAM = $(LINK) -pie

# ---- Build

all: $(BUILD)/nvswap $(LIBRARIES) $(BUILD)/nvswap.1 $(BUILD)/man/libnvswap.3 $(BUILD)/nvswap.bash ## the command and both libraries, under build/

# Changes when a flag does; every object depends on it.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@$(PKG_CONFIG) --exists $(PACKAGES) || \
		{ echo "A library is missing; run 'make setup' to install it." >&2; exit 1; }
	@echo '$(subst ','\'',$(CC) $(LANGUAGE) $(PACKAGE_CFLAGS) $(PACKAGE_LIBS) $(FORTIFY) \
		$(HARDENED) $(CPPFLAGS) $(SANITIZE_FLAGS) $(CFLAGS) $(TEST_CFLAGS) $(TEST_APART) $(UNASSERTED) $(KERNEL_FLAGS) $(FLAGS_src/base/nearest.c) $(HARDENED_LINK) $(LDFLAGS))' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(COMPILE) -c -o $@ $<

$(CHECKED_OBJECTS): $(BUILD)/checked/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(COMPILE) -c -o $@ $<

# One object whose only global symbols are public, so the archive cannot clash with a program's names.
$(BUILD)/libnvswap.o: $(LIB_OBJECTS)
	$(Q)$(CC) -r -nostdlib -o $@ $(LIB_OBJECTS)
	$(Q)$(OBJCOPY) --localize-hidden $@

$(BUILD)/libnvswap.a: $(BUILD)/libnvswap.o
	$(call say,AR)
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $<

$(BUILD)/$(SOFILE): $(LIB_OBJECTS) libnvswap.map
	$(call say,LD)
	$(Q)$(LINK) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=libnvswap.map \
		$(if $(SANITIZE),,-Wl,-z,defs) -o $@ $(LIB_OBJECTS) $(PACKAGE_LIBS)

$(BUILD)/libnvswap.so: $(BUILD)/$(SOFILE)
	$(Q)ln -sf $(SOFILE) $(BUILD)/$(SONAME)
	$(Q)ln -sf $(SONAME) $@

# The command uses src/base beside the public interface, so it gets the library's objects too.
$(BUILD)/nvswap: $(CLI_OBJECTS) $(LIB_OBJECTS)
	$(call say,LD)
	$(Q)$(LINK_PROGRAM) -o $@ $^ $(PACKAGE_LIBS)

$(BUILD)/python/nvswap/_native.abi3.so: $(BUILD)/libnvswap.a $(wildcard python/*.py python/*.toml python/nvswap/*.py \
		python/nvswap/*/*.py python/nvswap/*/*/*.py include/nvswap/*.h)
	$(call say,PYTHON)
	@# setuptools does not look at the library.
	$(Q)rm -f $@ && mkdir -p $(BUILD)/python-build
	$(Q)cd python && NVSWAP_LIBRARY='$(abspath $<)' CC='$(CC)' CFLAGS='$(SANITIZE_FLAGS)' \
		LDFLAGS='$(SANITIZE_FLAGS)' $(DEBIAN_PYTHON) -W ignore setup.py -q \
		egg_info -e '$(abspath $(BUILD))/python-build' build -b '$(abspath $(BUILD))/python-build' \
		--build-lib '$(abspath $(BUILD))/python' 2>'$(abspath $(BUILD))/python-build/log' || \
		{ cat '$(abspath $(BUILD))/python-build/log' >&2; exit 1; }
	$(Q)echo $(PYTHON_RUNTIMES) >$(BUILD)/python/runtimes
	$(Q)touch $@

# An archive, so that a test program links only the modules of the command that it uses.
$(BUILD)/cli.a: $(filter-out %/main.o,$(CLI_OBJECTS))
	$(call say,AR)
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $^

# Tests use internal symbols, which the library's archive hides, so they link its objects.
LINK_TESTS = $(LINK_PROGRAM) $(WRAPPED:%=-Wl,--wrap=%) -o $@ $(filter %.o %.a,$^) $(TEST_LIBS) $(PACKAGE_LIBS)

$(TEST_APART:%.c=$(BUILD)/%): $(BUILD)/%: $(BUILD)/%.o $(SUPPORT_OBJECTS) $(TESTED_OBJECTS) $(BUILD)/cli.a
	$(call say,LD)
	$(Q)$(LINK_TESTS)

$(BUILD)/tests/groups.h: FORCE
	@mkdir -p $(@D)
	@printf 'GROUP(%s)\n' $(basename $(notdir $(TEST_TOGETHER))) >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(BUILD)/tests/all.o: INCLUDES_tests += -I$(BUILD)/tests
$(BUILD)/tests/all.o: $(BUILD)/tests/groups.h

$(BUILD)/tests/all: $(TEST_TOGETHER:%.c=$(BUILD)/%.o) $(BUILD)/tests/all.o $(SUPPORT_OBJECTS) $(TESTED_OBJECTS) $(BUILD)/cli.a
	@# A function that a test replaces would be replaced for all of them.
	@! nm -A -g --defined-only $(TEST_TOGETHER:%.c=$(BUILD)/%.o) | grep -v ' main_of_' || \
		{ echo 'Make it static, or list the test in TEST_APART.' >&2; exit 1; }
	$(call say,LD)
	$(Q)$(LINK_TESTS)

$(TEST_TOGETHER:%.c=$(BUILD)/%): $(BUILD)/tests/all
	@mkdir -p $(@D)
	@ln -sfr $< $@

$(BENCH_PROGRAMS): $(BUILD)/%: $(BUILD)/%.o $(BENCH_SUPPORT:%.c=$(BUILD)/%.o) $(LIB_OBJECTS)
	$(call say,LD)
	$(Q)$(LINK_PROGRAM) -o $@ $^ $(PACKAGE_LIBS)

# The manual page, the completion and tables in documents are generated from the tables of options.
$(BUILD)/option-docs: $(DOCS_OBJECTS) $(BUILD)/cli.a $(LIB_OBJECTS)
	$(call say,LD)
	$(Q)$(LINK_PROGRAM) -o $@ $^ $(PACKAGE_LIBS)

$(BUILD)/nvswap.1: man/nvswap.1.in $(BUILD)/option-docs
	$(call say,DOCS)
	$(Q)$(BUILD)/option-docs $< >$@

$(BUILD)/nvswap.bash: scripts/nvswap.bash.in $(BUILD)/option-docs
	$(call say,DOCS)
	$(Q)$(BUILD)/option-docs $< >$@

# A page for each public function, from the comments of the headers; libnvswap.3 is written last.
$(BUILD)/man/libnvswap.3: man/libnvswap.3.in scripts/manual_pages.py $(wildcard include/*.h include/nvswap/*.h) $(EXAMPLES)
	$(call say,DOCS)
	$(Q)$(PYTHON) scripts/manual_pages.py $< $(@D) $(filter %.h %.c,$^)

# Generated tables that are committed.
DOCUMENTS = $(shell grep -ls '^<!-- @' README.md docs/*.md)

docs: $(BUILD)/option-docs ## update the tables of options in README.md and docs/
	@for file in $(DOCUMENTS); do \
		$(BUILD)/option-docs $$file >$(BUILD)/document && cp $(BUILD)/document $$file || exit; done

# The sources of each fuzz target, as few as possible: all are instrumented for the fuzzer.
FUZZED_config := $(wildcard src/config/*.c src/base/json/*.c) $(addprefix src/base/,error.c files.c text.c nearest.c)
FUZZED_options := $(addprefix src/cli/,jobs/bench_options.c options/options.c) \
	$(addprefix src/base/,error.c nearest.c text.c) src/config/names.c
FUZZED_jobfile := $(FUZZED_options) src/base/files.c $(addprefix src/cli/jobs/,jobfile.c jobs.c)
FUZZED_manifest := src/store/manifest.c src/store/label.c src/config/names.c
FUZZED_optimizer_header := $(addprefix src/base/,error.c text.c) src/optim/state/header.c
FUZZED_optimizer_groups := $(addprefix src/base/,error.c text.c) src/optim/state/groups.c
FUZZED_torch_read := $(addprefix src/checkpoint/torch/,read.c zip.c pickle.c pickle_names.c)
FUZZED_safetensors := $(addprefix src/checkpoint/,checkpoint.c entries.c) \
	$(wildcard src/checkpoint/safetensors/*.c) src/config/names.c src/base/shape.c src/base/struct_size.c $(FUZZED_torch_read) \
	$(wildcard src/base/json/*.c) $(addprefix src/base/,error.c text.c)
FUZZED_torch := $(FUZZED_safetensors)
FUZZED_checksums := $(FUZZED_safetensors) src/checkpoint/checksums.c

define fuzz_program
$$(BUILD)/fuzz/fuzz_$1: $$(patsubst %.c,$$(BUILD)/%.o,fuzz/fuzz_$1.c $(FUZZ_ALLOCATIONS) $$(FUZZED_$1))
	$$(call say,LD)
	$$(Q)$$(LINK_PROGRAM) -fsanitize=fuzzer -Wl,--wrap=LLVMFuzzerTestOneInput -o $$@ $$^ $$(PACKAGE_LIBS)

$$(BUILD)/fuzz/replay_$1: $$(patsubst %.c,$$(BUILD)/%.o,$(FUZZ_REPLAY) fuzz/fuzz_$1.c $(FUZZ_ALLOCATIONS) $$(FUZZED_$1))
	$$(call say,LD)
	$$(Q)$$(LINK_PROGRAM) -Wl,--wrap=LLVMFuzzerTestOneInput -o $$@ $$^ $$(PACKAGE_LIBS)
endef
$(foreach target,$(FUZZ_SOURCES:fuzz/fuzz_%.c=%),$(eval $(call fuzz_program,$(target))))

-include $(patsubst %.o,%.d,$(LIB_OBJECTS) $(CHECKED_OBJECTS) $(CLI_OBJECTS) $(SUPPORT_OBJECTS) \
	$(BUILD)/tests/all.o $(TEST_PROGRAMS:%=%.o) $(BENCH_PROGRAMS:%=%.o) $(BENCH_SUPPORT:%.c=$(BUILD)/%.o) \
	$(FUZZ_PROGRAMS:%=%.o) $(FUZZ_REPLAY:%.c=$(BUILD)/%.o) $(FUZZ_ALLOCATIONS:%.c=$(BUILD)/%.o) $(DOCS_OBJECTS))

# ---- Run

setup: ## install the missing packages for building and testing
	@scripts/setup build test

# DIR=/mnt/nvme: on the drive there.
DIR ?= $(BUILD)/demo

demo: ## swap GPT-2 out and in, verify it, and compare with the drive's own speed (DIR=/mnt/nvme)
	@scripts/setup build
	@$(MAKE) -j$(JOBS) --no-print-directory all
	@scripts/demo $(BUILD)/nvswap '$(DIR)'

check: setup ## build everything and run the tests
	@$(MAKE) -j$(JOBS) --no-print-directory all test-programs
	@$(MAKE) --no-print-directory test

check-all: ## everything at length, for hours: what tests/runs leaves out, more seeds, fuzzing, soaks, clang-tidy of the whole tree
	@scripts/setup build test deepspeed lint bench browser fuzz
	@AT_LENGTH=1 FUZZ_SECONDS=60 SINCE= scripts/stages check check-deepspeed asan tsan unasserted format tidy cppcheck \
		fuzz soak soak-deepspeed

test-programs: $(TEST_PROGRAMS) $(BENCH_PROGRAMS) $(REPLAY_PROGRAMS) $(PYTHON_PACKAGE)

# TESTS="pool aio" runs test_pool.* and test_aio.* only.
TESTS ?=
chosen = $(if $(TESTS),$(foreach t,$(TESTS),$(filter %/test_$(t) %/test_$(t).sh %/test_$(t).py,$1)),$1)

test: all test-programs ## run the tests, without installing packages (TESTS="pool aio": only those)
	@BUILD='$(BUILD)' CC='$(CC)' CFLAGS='$(CFLAGS)' CPPFLAGS='$(CPPFLAGS)' \
		LDFLAGS='$(LDFLAGS)' WERROR='$(WERROR)' SANITIZE='$(SANITIZE)' \
		SANITIZE_FLAGS='$(SANITIZE_FLAGS)' \
		tests/run $(call chosen,$(TEST_PROGRAMS) $(TEST_SCRIPTS) $(if $(PYTHON_PACKAGE),$(PYTHON_TESTS)))

# Virtual environments with the versions that are named there.
$(BUILD)/venv/ready: python/tests/requirements.txt
$(BUILD)/wheel-tools/ready: scripts/wheel-requirements.txt
$(BUILD)/venv/ready $(BUILD)/wheel-tools/ready:
	$(Q)DEBIAN_PYTHON='$(DEBIAN_PYTHON)' scripts/venv $< $(@D)
	$(Q)touch $@

check-deepspeed: ## the tests of the Python package that need torch or DeepSpeed, in a virtual environment
	@scripts/setup build test deepspeed
	@$(MAKE) -j$(JOBS) --no-print-directory all $(PYTHON_PACKAGE) $(BUILD)/venv/ready
	@PATH='$(abspath $(BUILD))/venv/bin:$(PATH)' BUILD='$(BUILD)' tests/run \
		$(wildcard python/tests/*/test_*.py python/tests/*/*/test_*.py)

# FAULTS="--jobs 1000 --hours 8 --seed 7" sets how many jobs with faults run, and the seed of the first.
FAULTS ?= --hours 0.25

soak-deepspeed: ## DeepSpeed's own ops beside nvswap's, call by call and in a large job, that job in bfloat16 at each depth, and jobs with faults
	@scripts/setup build test deepspeed
	@$(MAKE) -j$(JOBS) --no-print-directory all $(PYTHON_PACKAGE) $(BUILD)/venv/ready
	@PATH='$(abspath $(BUILD))/venv/bin:$(PATH)' BUILD='$(BUILD)' \
		python3 python/tests/deepspeed/training/soak_job.py
	@PATH='$(abspath $(BUILD))/venv/bin:$(PATH)' BUILD='$(BUILD)' \
		python3 python/tests/deepspeed/training/soak_faults.py $(FAULTS)

asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(MAKE) -j$(JOBS) --no-print-directory BUILD=$(BUILD)/asan SANITIZE=address,undefined \
		all test-programs
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/asan SANITIZE=address,undefined test

tsan: ## the tests under ThreadSanitizer
	@$(MAKE) -j$(JOBS) --no-print-directory BUILD=$(BUILD)/tsan SANITIZE=thread \
		all test-programs
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/tsan SANITIZE=thread test

unasserted: ## the tests of a library and a command without assertions
	@$(MAKE) -j$(JOBS) --no-print-directory BUILD=$(BUILD)/unasserted ASSERTIONS=no \
		all test-programs
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/unasserted ASSERTIONS=no test

# Needs gcc. Lines that only a killed child ran are not counted, and neither are those that this machine
# cannot run: kernels for other instruction sets, tests that need root or a device.
COVERAGE_MIN ?= 90
coverage_make = $(MAKE) --no-print-directory BUILD='$(BUILD)/coverage' CC=gcc CFLAGS='-O0 -g' \
	SANITIZE_FLAGS='--coverage -fprofile-update=atomic'

coverage: ## lines of src/ that the tests run; fails below 90 % (COVERAGE_MIN)
	@scripts/setup build test coverage
	@$(coverage_make) -j$(JOBS) all test-programs
	@find '$(BUILD)/coverage' -name '*.gcda' -delete
	@$(coverage_make) test
	@gcovr --root . --filter src/ --fail-under-line $(COVERAGE_MIN) '$(BUILD)/coverage'

# FUZZ="config" runs that target only. Targets run one after the other, FUZZ_SECONDS each.
FUZZ ?= $(FUZZ_SOURCES:fuzz/fuzz_%.c=%)
FUZZ_SECONDS ?= 300

fuzz: ## run the fuzz targets at length (FUZZ="config" FUZZ_SECONDS=60)
	@scripts/setup build fuzz
	@$(MAKE) --no-print-directory fuzz-build
	@BUILD='$(BUILD)' fuzz/run --seconds '$(FUZZ_SECONDS)' $(FUZZ)

# Always built by clang, in a build directory of its own.
fuzz-build:
	@$(MAKE) -j$(JOBS) --no-print-directory BUILD='$(BUILD)/fuzz' CC=clang CFLAGS='-O2 -g' \
		SANITIZE=fuzzer-no-link,address,undefined fuzz-programs

fuzz-programs: $(FUZZ_PROGRAMS)

# SOAK="--minutes 10 --seed 7" sets the time of each program and repeats a run.
SOAK ?= --minutes 5

soak: all test-programs ## random histories, kills, and swaps and steps on a drive, at length
	$(BUILD)/tests/system/test_histories soak $(SOAK)
	$(BUILD)/tests/system/test_kill soak $(SOAK)
	@rm -rf $(BUILD)/tmp/soak && mkdir -p $(BUILD)/tmp/soak
	$(BUILD)/bench/soak --directory $(BUILD)/tmp/soak $(SOAK)
	@rm -rf $(BUILD)/tmp/soak

# MUTATE="--only store --count 10 --seed 2" changes ten places of src/store.
MUTATE ?=

mutate: ## change the code place by place, and list the changes that no test of the layer sees
	@BUILD='$(BUILD)' $(PYTHON) tests/support/mutate.py $(MUTATE)

# BENCH="--only step --rounds 3" measures only the optimizer step.
BENCH ?=

BENCH_WITH_TORCH := $(findstring deepspeed,$(BENCH))$(findstring torch,$(BENCH))$(findstring accelerate,$(BENCH))$(findstring weights,$(BENCH))

bench: ## measure in turn with fio and a bare io_uring loop
	@scripts/setup build bench $(if $(BENCH_WITH_TORCH),test deepspeed)
	@$(MAKE) -j$(JOBS) --no-print-directory all bench-programs \
		$(if $(BENCH_WITH_TORCH),$(PYTHON_PACKAGE) $(BUILD)/venv/ready)
	$(PYTHON) bench/run.py --build $(BUILD) $(BENCH)

bench-programs: $(BENCH_PROGRAMS)

# ---- Check the sources

format: ## check the formatting
	@clang-format --dry-run -Werror $(C_SOURCES) $(HEADERS)

# SINCE=COMMIT: only what has changed since then, and what includes it. Otherwise a file is checked again when
# it, a header that it includes or .clang-tidy has changed.
SINCE ?=
TIDY_SOURCES = $(if $(SINCE),$(shell scripts/changed '$(SINCE)' '$(BUILD)' $(C_SOURCES)),$(C_SOURCES))
tidy: ## clang-tidy (SINCE=HEAD~3: of what has changed since then)
	@set -- $(TIDY_SOURCES:%=$(BUILD)/tidy/%.ok); [ $$# = 0 ] || $(MAKE) -j$(JOBS) --no-print-directory "$$@"

$(BUILD)/tidy/%.ok: % .clang-tidy tests/.clang-tidy
	@mkdir -p $(@D)
	$(call say,TIDY,$<)
	@clang-tidy --quiet $< -- $(LANGUAGE) $(call includes,$<) $(PACKAGE_CFLAGS) $(FLAGS_$<) \
		-Wno-unknown-warning-option 2>$@.err || { cat $@.err >&2; exit 1; }
	@$(CC) $(LANGUAGE) $(call includes,$<) $(PACKAGE_CFLAGS) -MM -MP -MT $@ -MF $(@:.ok=.d) $<
	@touch $@

ifneq ($(filter $(BUILD)/tidy/%,$(MAKECMDGOALS)),)
-include $(C_SOURCES:%=$(BUILD)/tidy/%.d)
$(BUILD)/tidy/tests/all.c.ok: INCLUDES_tests += -I$(BUILD)/tests
$(BUILD)/tidy/tests/all.c.ok: $(BUILD)/tests/groups.h
endif

cppcheck: ## cppcheck
	@mkdir -p $(BUILD)/cppcheck
	@cppcheck --quiet -j$(JOBS) --cppcheck-build-dir=$(BUILD)/cppcheck --std=c11 \
		--enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
		--library=posix,gnu --suppress=missingIncludeSystem --suppress=readdirCalled -D_GNU_SOURCE -D__linux__ \
		-Iinclude -Isrc $(LIB_SOURCES) $(CLI_SOURCES) $(BENCH_SOURCES) $(BENCH_SUPPORT) $(EXAMPLES) \
		$(DOCS_SOURCES)

# ---- Install

FUNCTIONS = $(shell sed -n 's/^NVS_API \([A-Za-z0-9_ *]*[ *]\)\(nvs_[a-z0-9_]*\).*/\2/p' \
	include/nvswap/*.h)

install: all ## install into PREFIX (/usr/local), below DESTDIR
	install -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig' '$(DESTDIR)$(INCLUDEDIR)' \
		'$(DESTDIR)$(INCLUDEDIR)/nvswap' '$(DESTDIR)$(MANDIR)/man1' \
		'$(DESTDIR)$(MANDIR)/man3' '$(DESTDIR)$(COMPLETIONDIR)'
	install -m 755 $(BUILD)/nvswap '$(DESTDIR)$(BINDIR)'
	install -m 644 include/nvswap.h '$(DESTDIR)$(INCLUDEDIR)'
	install -m 644 include/nvswap/*.h '$(DESTDIR)$(INCLUDEDIR)/nvswap'
	install -m 644 $(BUILD)/libnvswap.a '$(DESTDIR)$(LIBDIR)'
	install -m 755 $(BUILD)/$(SOFILE) '$(DESTDIR)$(LIBDIR)'
	ln -sf $(SOFILE) '$(DESTDIR)$(LIBDIR)/$(SONAME)'
	ln -sf $(SONAME) '$(DESTDIR)$(LIBDIR)/libnvswap.so'
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' \
		-e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' -e 's|@VERSION@|$(VERSION)|' nvswap.pc.in \
		>'$(DESTDIR)$(LIBDIR)/pkgconfig/nvswap.pc'
	install -m 644 $(BUILD)/nvswap.1 '$(DESTDIR)$(MANDIR)/man1'
	install -m 644 $(BUILD)/nvswap.bash '$(DESTDIR)$(COMPLETIONDIR)/nvswap'
	install -m 644 $(BUILD)/man/*.3 '$(DESTDIR)$(MANDIR)/man3'
	@if [ -z '$(DESTDIR)' ] && [ "$$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then \
		ldconfig; fi

uninstall: ## remove what install put there
	rm -f '$(DESTDIR)$(BINDIR)/nvswap' '$(DESTDIR)$(INCLUDEDIR)/nvswap.h' \
		'$(DESTDIR)$(LIBDIR)/libnvswap.a' '$(DESTDIR)$(LIBDIR)/libnvswap.so' \
		'$(DESTDIR)$(LIBDIR)/$(SONAME)' '$(DESTDIR)$(LIBDIR)/$(SOFILE)' \
		'$(DESTDIR)$(LIBDIR)/pkgconfig/nvswap.pc' '$(DESTDIR)$(MANDIR)/man1/nvswap.1' \
		'$(DESTDIR)$(MANDIR)/man3/libnvswap.3' '$(DESTDIR)$(COMPLETIONDIR)/nvswap'
	rm -rf '$(DESTDIR)$(INCLUDEDIR)/nvswap'
	for f in $(FUNCTIONS); do rm -f '$(DESTDIR)$(MANDIR)/man3/'$$f.3; done

wheel: ## a wheel for other machines, with the libraries inside, and a source distribution, in build/dist/
	@scripts/setup build wheel
	@$(MAKE) -s --no-print-directory $(BUILD)/wheel-tools/ready
	@PATH='$(abspath $(BUILD))/wheel-tools/bin:$(PATH)' scripts/wheel '$(BUILD)/dist' >'$(BUILD)/wheel.log' 2>&1 || \
		{ cat '$(BUILD)/wheel.log' >&2; exit 1; }
	@ls '$(BUILD)'/dist/*

clean: ## remove the build directory
	rm -rf $(BUILD)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

FORCE:
.PHONY: all setup demo check check-all check-deepspeed soak-deepspeed test test-programs asan tsan unasserted soak mutate fuzz fuzz-build fuzz-programs bench \
	bench-programs coverage docs format tidy \
	cppcheck install uninstall wheel clean help FORCE
