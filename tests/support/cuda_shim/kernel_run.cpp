// SPDX-License-Identifier: Apache-2.0
#include "support/cuda_shim/kernel_run.h"

#include "support/cuda_shim/cuda_runtime_api.h"
#include "support/cuda_shim/memory_checks.h"

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
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
    context_.sanitized.create();
  }

  void start(const std::function<void()>& body) {
    body_ = &body;
    is_done_ = false;
    ::getcontext(&context_.registers);
    context_.registers.uc_stack.ss_sp = stack_.get();
    context_.registers.uc_stack.ss_size = kStackBytes;
    context_.registers.uc_link = nullptr;
    ::makecontext(&context_.registers, &Fiber::enter, 0);
  }

  /// Runs to the next barrier or to the end.
  void resume() {
    running_ = this;
    launcher_.sanitized.be_current();
    switch_context(launcher_, context_);
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
    switch_context(running_->context_, launcher_);
    return true;
  }

 private:
  static void enter() {
    Fiber& fiber = *running_;
    (*fiber.body_)();
    fiber.is_done_ = true;
    switch_context(fiber.context_, launcher_);
  }

  static inline Fiber* running_ = nullptr;
  static inline Context launcher_;
  std::unique_ptr<std::byte[]> stack_;
  Context context_;
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

std::mt19937& random_numbers() {
  static std::mt19937 numbers(process_seed());
  return numbers;
}

/// The threads of one block.
class Block {
 public:
  /// @param order numbers of the threads; changed.
  Block(std::vector<unsigned>& order, const std::function<void()>& body)
      : order_(order), body_(body) {}

  void run() {
    begin_block();
    change_order();
    // Only kernels with a barrier need a fiber for each thread.
    start(order_.front());
    if (fiber(order_.front()).is_done()) {
      std::for_each(order_.begin() + 1, order_.end(), [&](unsigned thread) {
        kernel.thread.x = thread;
        body_();
      });
      return;
    }
    std::for_each(order_.begin() + 1, order_.end(), [&](unsigned thread) {
      start(thread);
    });
    while (!fiber(0).is_done()) {
      pass_barrier();
      change_order();
      for (const unsigned thread : order_) {
        check(!fiber(thread).is_done());
        kernel.thread.x = thread;
        fiber(thread).resume();
      }
    }
    for (const unsigned thread : order_) {
      check(fiber(thread).is_done());
    }
  }

 private:
  /// Another one in little time: a full shuffle takes longer than most kernels.
  void change_order() {
    const size_t number = random_numbers()();
    std::rotate(
        order_.begin(),
        order_.begin() + static_cast<ptrdiff_t>(number / 2 % order_.size()),
        order_.end());
    if (number % 2 == 0) {
      std::reverse(order_.begin(), order_.end());
    }
  }
  /// Kept: creating stacks anew for every block takes long.
  static Fiber& fiber(unsigned i) {
    static std::vector<std::unique_ptr<Fiber>> fibers;
    while (fibers.size() <= i) {
      fibers.push_back(std::make_unique<Fiber>());
    }
    return *fibers[i];
  }
  void start(unsigned thread) {
    kernel.thread.x = thread;
    fiber(thread).start(body_);
    fiber(thread).resume();
  }

  std::vector<unsigned>& order_;
  const std::function<void()>& body_;
};

/// Calls run(block) for the blocks of a grid, in a random order if they are
/// few, else forwards or backwards.
template <typename Run>
void for_each_block(const dim3& grid, const Run& run) {
  constexpr size_t kFew = 1 << 16;
  const size_t count = size_t{grid.x} * grid.y;
  const auto block = [&](size_t i) {
    run(dim3(
        static_cast<unsigned>(i % grid.x),
        static_cast<unsigned>(i / grid.x),
        0));
  };
  if (count <= kFew) {
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random_numbers());
    std::for_each(order.begin(), order.end(), block);
    return;
  }
  const bool backwards = random_numbers()() % 2 == 0;
  for (size_t i = 0; i < count; ++i) {
    block(backwards ? count - 1 - i : i);
  }
}

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
  std::vector<unsigned> order(threads.x);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random_numbers());
  begin_launch();
  for_each_block(grid, [&](const dim3& block) {
    kernel.block = block;
    if (!options.runs_block || options.runs_block(block)) {
      Block(order, body).run();
    }
  });
  end_launch();
  return cudaSuccess;
}

uint64_t process_seed() {
  static const uint64_t seed = [] {
    const char* wanted = std::getenv("TESSERA_SHIM_SEED");
    const uint64_t chosen = wanted != nullptr
                                ? std::strtoull(wanted, nullptr, 10)
                                : std::random_device()();
    std::fprintf(
        stderr,
        "cuda_shim: TESSERA_SHIM_SEED=%llu\n",
        static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return seed;
}

void wait_for_block() {
  check(Fiber::suspend());
}

int last_error() {
  return std::exchange(error_of_launch, cudaSuccess);
}

} // namespace tessera::tests::cuda_shim
