// SPDX-License-Identifier: Apache-2.0
#include "support/cuda_shim/kernel_run.h"

#include "support/cuda_shim/cuda_runtime_api.h"
#include "support/cuda_shim/memory_checks.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
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

/// What a thread gives to an exchange of its warp.
struct Exchange {
  unsigned mask; ///< the lanes that take part
  unsigned lane_mask;
  uint32_t value; ///< afterwards that of the other lane
};

/// A thread of a block, as a coroutine that a barrier or an exchange of its
/// warp suspends.
class Fiber {
 public:
  enum class State { kReady, kAtBarrier, kInExchange, kDone };

  Fiber() : stack_(new std::byte[kStackBytes]) {
    context_.sanitized.create();
  }

  void start(const std::function<void()>& body) {
    body_ = &body;
    state_ = State::kReady;
    ::getcontext(&context_.registers);
    context_.registers.uc_stack.ss_sp = stack_.get();
    context_.registers.uc_stack.ss_size = kStackBytes;
    context_.registers.uc_link = nullptr;
    ::makecontext(&context_.registers, &Fiber::enter, 0);
  }

  /// Runs to the next barrier, exchange or to the end.
  void resume() {
    running_ = this;
    launcher_.sanitized.be_current();
    switch_context(launcher_, context_);
    running_ = nullptr;
  }

  State state() const {
    return state_;
  }
  void be_ready() {
    state_ = State::kReady;
  }
  /// Of a fiber in one.
  Exchange& exchange() {
    return exchange_;
  }

  /// Suspends the fiber that runs; false if there is none.
  static bool wait_at_barrier() {
    return suspend(State::kAtBarrier);
  }
  /// Likewise; afterwards `exchange` has the other lane's value.
  static bool wait_for_exchange(Exchange& exchange) {
    Fiber* fiber = running_;
    if (fiber == nullptr) {
      return false;
    }
    fiber->exchange_ = exchange;
    suspend(State::kInExchange);
    exchange = fiber->exchange_;
    return true;
  }

 private:
  static bool suspend(State state) {
    if (running_ == nullptr) {
      return false;
    }
    running_->state_ = state;
    switch_context(running_->context_, launcher_);
    return true;
  }
  static void enter() {
    Fiber& fiber = *running_;
    (*fiber.body_)();
    fiber.state_ = State::kDone;
    switch_context(fiber.context_, launcher_);
  }

  static inline Fiber* running_ = nullptr;
  static inline Context launcher_;
  std::unique_ptr<std::byte[]> stack_;
  Context context_;
  const std::function<void()>* body_ = nullptr;
  State state_ = State::kDone;
  Exchange exchange_{};
};

constexpr unsigned kWarp = 32;

/// CUDA leaves undefined what happens if these do not hold.
void check(bool holds, const char* message) {
  if (!holds) {
    std::fprintf(stderr, "cuda_shim: %s\n", message);
    std::abort();
  }
}
constexpr auto kBarrierMissed = "not all threads of a block reach a barrier";
constexpr auto kExchangeMissed =
    "a thread of a warp takes no part in an exchange that names it, or does "
    "with another mask";

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
    // Only kernels whose threads wait need a fiber for each.
    start(order_.front());
    if (state_of(order_.front()) == Fiber::State::kDone) {
      std::for_each(order_.begin() + 1, order_.end(), [&](unsigned thread) {
        kernel.thread.x = thread;
        body_();
      });
      return;
    }
    std::for_each(order_.begin() + 1, order_.end(), [&](unsigned thread) {
      start(thread);
    });
    while (release()) {
      change_order();
      for (const unsigned thread : order_) {
        if (state_of(thread) == Fiber::State::kReady) {
          kernel.thread.x = thread;
          fiber(thread).resume();
        }
      }
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
  static Fiber::State state_of(unsigned thread) {
    return fiber(thread).state();
  }
  unsigned count(Fiber::State state) const {
    return static_cast<unsigned>(
        std::count_if(order_.begin(), order_.end(), [&](unsigned thread) {
          return state_of(thread) == state;
        }));
  }

  /// When all fibers wait or are done: makes those ready whose exchange is
  /// complete, or else all, at a barrier.
  /// @return false if all are done.
  bool release() {
    if (finish_exchanges()) {
      return true;
    }
    check(count(Fiber::State::kInExchange) == 0, kExchangeMissed);
    const unsigned waiting = count(Fiber::State::kAtBarrier);
    if (waiting == 0) {
      return false;
    }
    check(waiting == order_.size(), kBarrierMissed);
    pass_barrier();
    for (const unsigned thread : order_) {
      fiber(thread).be_ready();
    }
    return true;
  }
  /// Memory is not ordered by them. @return whether there were any.
  bool finish_exchanges() {
    bool is_any = false;
    for (unsigned thread = 0; thread < order_.size(); ++thread) {
      const unsigned warp = thread / kWarp * kWarp;
      const unsigned mask = fiber(thread).exchange().mask;
      // Each one once: by the first of its lanes.
      if (state_of(thread) == Fiber::State::kInExchange &&
          std::countr_zero(mask) == static_cast<int>(thread - warp) &&
          is_complete(warp, mask)) {
        finish_exchange(warp, mask);
        is_any = true;
      }
    }
    return is_any;
  }
  /// Calls use(lane) for those of a mask.
  template <typename Use>
  static void for_lanes(unsigned mask, const Use& use) {
    for (; mask != 0; mask &= mask - 1) {
      use(static_cast<unsigned>(std::countr_zero(mask)));
    }
  }
  /// @param warp its first thread.
  bool is_complete(unsigned warp, unsigned mask) const {
    bool is_so = true;
    for_lanes(mask, [&](unsigned lane) {
      const unsigned thread = warp + lane;
      is_so = is_so && thread < order_.size() &&
              state_of(thread) == Fiber::State::kInExchange &&
              fiber(thread).exchange().mask == mask;
    });
    return is_so;
  }
  static void finish_exchange(unsigned warp, unsigned mask) {
    std::array<uint32_t, kWarp> values{};
    for_lanes(mask, [&](unsigned lane) {
      values[lane] = fiber(warp + lane).exchange().value;
    });
    for_lanes(mask, [&](unsigned lane) {
      Fiber& thread = fiber(warp + lane);
      Exchange& exchange = thread.exchange();
      exchange.value = values[lane ^ exchange.lane_mask];
      thread.be_ready();
    });
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
  check(Fiber::wait_at_barrier(), kBarrierMissed);
}

uint32_t exchange_in_warp(unsigned mask, uint32_t value, unsigned lane_mask) {
  const unsigned lane = kernel.thread.x % kWarp;
  const auto names = [mask](unsigned which) {
    return which < kWarp && (mask >> which & 1u) != 0;
  };
  check(names(lane), "a thread's mask of an exchange does not name it");
  check(
      names(lane ^ lane_mask),
      "a thread reads a lane that its mask of an exchange does not name");
  Exchange exchange{mask, lane_mask, value};
  check(Fiber::wait_for_exchange(exchange), kExchangeMissed);
  return exchange.value;
}

int last_error() {
  return std::exchange(error_of_launch, cudaSuccess);
}

} // namespace tessera::tests::cuda_shim
