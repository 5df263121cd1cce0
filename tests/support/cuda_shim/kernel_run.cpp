// SPDX-License-Identifier: Apache-2.0
#include "support/cuda_shim/kernel_run.h"

#include "support/cuda_shim/cuda_runtime_api.h"

#include <ucontext.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace tessera::tests::cuda_shim {

namespace {

constexpr size_t kStackBytes = size_t{64} << 10;

int error_of_launch = cudaSuccess;

#if defined(__SANITIZE_THREAD__)
/// What ThreadSanitizer has to know of a coroutine.
class SanitizedFiber {
 public:
  ~SanitizedFiber() {
    if (is_own_) {
      __tsan_destroy_fiber(fiber_);
    }
  }
  void create() {
    fiber_ = __tsan_create_fiber(0);
    is_own_ = true;
  }
  void be_current() {
    fiber_ = __tsan_get_current_fiber();
  }
  void enter() const {
    __tsan_switch_to_fiber(fiber_, 0);
  }

 private:
  void* fiber_ = nullptr;
  bool is_own_ = false;
};
#else
struct SanitizedFiber {
  void create() {}
  void be_current() {}
  void enter() const {}
};
#endif

struct Context {
  ucontext_t registers{};
  SanitizedFiber sanitized;
};

/// Returns when something switches back to `from`.
void switch_context(Context& from, const Context& to) {
  to.sanitized.enter();
  ::swapcontext(&from.registers, &to.registers);
}

/// A thread of a block, as a coroutine that a barrier suspends.
class Fiber {
 public:
  Fiber() : stack_(new std::byte[kStackBytes]) {
    own_.sanitized.create();
  }

  void start(const std::function<void()>& body) {
    body_ = &body;
    is_done_ = false;
    ::getcontext(&own_.registers);
    own_.registers.uc_stack.ss_sp = stack_.get();
    own_.registers.uc_stack.ss_size = kStackBytes;
    own_.registers.uc_link = nullptr;
    ::makecontext(&own_.registers, &Fiber::enter, 0);
  }

  /// Runs to the next barrier or to the end.
  void resume() {
    running_ = this;
    launcher_.sanitized.be_current();
    switch_context(launcher_, own_);
    running_ = nullptr;
  }

  bool is_done() const {
    return is_done_;
  }

  /// Suspends the fiber that runs; false if there is none.
  static bool suspend() {
    if (running_ == nullptr) {
      return false;
    }
    switch_context(running_->own_, launcher_);
    return true;
  }

 private:
  static void enter() {
    Fiber& fiber = *running_;
    (*fiber.body_)();
    fiber.is_done_ = true;
    switch_context(fiber.own_, launcher_);
  }

  static inline Fiber* running_ = nullptr;
  static inline Context launcher_;
  std::unique_ptr<std::byte[]> stack_;
  Context own_;
  const std::function<void()>* body_ = nullptr;
  bool is_done_ = false;
};

/// CUDA leaves undefined what happens then.
void check(bool is_at_barrier) {
  if (!is_at_barrier) {
    std::fputs(
        "cuda_shim: not all threads of a block reach a barrier\n", stderr);
    std::abort();
  }
}

/// The threads of one block.
class Block {
 public:
  Block(unsigned threads, bool descending, const std::function<void()>& body)
      : threads_(threads), descending_(descending), body_(body) {}

  void run() {
    // Only kernels with a barrier need a fiber for each thread.
    start(0);
    if (fiber(0).is_done()) {
      for (unsigned i = 1; i < threads_; ++i) {
        kernel.thread.x = place(i);
        body_();
      }
      return;
    }
    for (unsigned i = 1; i < threads_; ++i) {
      start(i);
    }
    while (!fiber(0).is_done()) {
      for (unsigned i = 0; i < threads_; ++i) {
        check(!fiber(i).is_done());
        kernel.thread.x = place(i);
        fiber(i).resume();
      }
    }
    for (unsigned i = 0; i < threads_; ++i) {
      check(fiber(i).is_done());
    }
  }

 private:
  unsigned place(unsigned i) const {
    return descending_ ? threads_ - 1 - i : i;
  }
  /// Kept: creating stacks anew for every block takes long.
  static Fiber& fiber(unsigned i) {
    static std::vector<std::unique_ptr<Fiber>> fibers;
    while (fibers.size() <= i) {
      fibers.push_back(std::make_unique<Fiber>());
    }
    return *fibers[i];
  }
  void start(unsigned i) {
    kernel.thread.x = place(i);
    fiber(i).start(body_);
    fiber(i).resume();
  }

  unsigned threads_;
  bool descending_;
  const std::function<void()>& body_;
};

bool is_launchable(
    const dim3& grid,
    const dim3& threads,
    size_t parameter_bytes) {
  constexpr unsigned kMostY = 65535;
  return threads.x >= 1 && threads.x <= 1024 && threads.y == 1 &&
         threads.z == 1 && grid.x >= 1 && grid.x < 1u << 31 && grid.y >= 1 &&
         grid.y <= kMostY && grid.z == 1 && parameter_bytes <= 4096;
}

} // namespace

KernelOptions& kernel_options() {
  static KernelOptions options;
  return options;
}

int run_kernel(
    const dim3& grid,
    const dim3& threads,
    size_t parameter_bytes,
    const std::function<void()>& body) {
  KernelOptions& options = kernel_options();
  if (++options.launches == options.failing_launch ||
      !is_launchable(grid, threads, parameter_bytes)) {
    error_of_launch = cudaErrorInvalidConfiguration;
    return error_of_launch;
  }
  kernel = {.grid = grid, .threads = threads};
  bool descending = false;
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; ++x) {
      kernel.block = dim3(x, y, 0);
      if (!options.runs_block || options.runs_block(kernel.block)) {
        Block(threads.x, descending, body).run();
        descending = !descending;
      }
    }
  }
  return cudaSuccess;
}

void wait_for_block() {
  check(Fiber::suspend());
}

int last_error() {
  return std::exchange(error_of_launch, cudaSuccess);
}

} // namespace tessera::tests::cuda_shim
