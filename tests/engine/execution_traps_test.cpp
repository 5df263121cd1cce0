// SPDX-License-Identifier: Apache-2.0
// What happens around the operators: autocast, threads, a huge vocabulary.
#include "engine/parity.h"
#include "engine/twin.h"
#include "support/ranks.h"

#include <ATen/autocast_mode.h>

#include <exception>
#include <semaphore>
#include <string>
#include <thread>

namespace tessera::tests::execution_traps_test {

namespace {

/// bfloat16 autocast on CPU while it lives.
class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

struct VocabularyImpl : torch::nn::Module {
  VocabularyImpl()
      : embedding(
            register_module("embedding", torch::nn::Embedding(50000, 4))) {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block(4)));
    }
    head = register_module("head", torch::nn::Linear(4, 50000));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embedding(ids);
    for (auto& block : blocks) {
      x = block(x);
    }
    return head(x);
  }
  torch::nn::Embedding embedding;
  std::vector<Block> blocks;
  torch::nn::Linear head{nullptr};
};

} // namespace

class ExecutionTraps : public ::testing::TestWithParam<int> {};

// One autocast region over several steps: a weight's cast must not outlive it.
TEST_P(ExecutionTraps, CastsOfWeightsByAutocastFollowTheWeights) {
  run_ranks(GetParam(), [](World&) {
    torch::manual_seed(3);
    Stack plain;
    torch::manual_seed(3);
    Stack wrapped;
    EngineOptions options = group_per_layer();
    auto engine = wrap(wrapped, options);
    PlainAdamW optimizer(plain->parameters(), {.lr = 1e-2});
    const Autocast autocast;
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = batch_of(step, 0).to(at::kFloat);
      const auto loss_of = [&x](Stack& net) {
        return net(x).to(at::kFloat).square().mean();
      };
      // LibTorch's own cache would keep the plain model's first casts.
      at::autocast::set_autocast_cache_enabled(false);
      const auto expected = loss_of(plain);
      at::autocast::set_autocast_cache_enabled(true);
      const auto loss = loss_of(wrapped);
      EXPECT_TRUE(torch::equal(loss, expected)) << "step " << step;
      optimizer.zero_grad();
      expected.backward();
      engine.backward(loss);
      optimizer.step();
      engine.step();
    }
  });
}

// The same on another thread: autocast's region and its cache's flag are a
// thread's own.
TEST_P(ExecutionTraps, CastsOfWeightsFollowTheWeightsOnAnotherThread) {
  run_ranks(GetParam(), [](World& world) {
    Stack plain;
    Stack wrapped;
    auto engine = wrap(wrapped, group_per_layer());
    std::exception_ptr error;
    at::Tensor x;
    at::Tensor y;
    // It and this thread take turns.
    std::binary_semaphore asked(0);
    std::binary_semaphore answered(0);
    bool is_over = false;
    std::thread forward([&] {
      const Autocast autocast; // of all steps
      for (asked.acquire(); !is_over; asked.acquire()) {
        try {
          y = wrapped(x).to(at::kFloat);
        } catch (...) {
          error = std::current_exception();
        }
        answered.release();
      }
      EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    });
    for (int step = 0; step < 4; ++step) {
      engine.for_each_parameter(
          [&](const std::string& name, const at::Tensor& value) {
            const c10::NoGradGuard no_grad;
            plain->named_parameters()[name].copy_(value);
          });
      x = batch_of(step, world.rank()).to(at::kFloat);
      asked.release();
      answered.acquire();
      if (error) {
        break;
      }
      at::autocast::set_autocast_cache_enabled(false);
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const at::Tensor expected = plain(x).to(at::kFloat);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::set_autocast_cache_enabled(true);
      EXPECT_TRUE(torch::equal(y, expected)) << "step " << step;
      engine.backward(y.square().mean());
      engine.step();
    }
    is_over = true;
    asked.release();
    forward.join();
    if (error) {
      std::rethrow_exception(error);
    }
  });
}

// What runs beside the wrapped module has autocast with its cache.
TEST_P(ExecutionTraps, AutocastsCacheIsAsItWas) {
  run_ranks(GetParam(), [](World& world) {
    for (const bool enabled : {true, false}) {
      at::autocast::set_autocast_cache_enabled(enabled);
      {
        Stack net;
        auto engine = wrap(net, group_per_layer());
        const Autocast autocast;
        const at::Tensor x = batch_of(0, world.rank()).to(at::kFloat);
        engine.backward(net(x).to(at::kFloat).square().mean());
        EXPECT_EQ(at::autocast::is_autocast_cache_enabled(), enabled);
        engine.step();
      }
      EXPECT_EQ(at::autocast::is_autocast_cache_enabled(), enabled);
    }
  });
}

TEST_P(ExecutionTraps, ForwardOnAnotherThreadThanBackward) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 3; ++step) {
      twin.plain_backward(step, [](StackImpl& net, const at::Tensor& x) {
        return net.forward(x).square().mean();
      });
      twin.wrapped_backward(step, [](StackImpl& net, const at::Tensor& x) {
        at::Tensor loss;
        std::exception_ptr error;
        std::thread([&] {
          try {
            loss = net.forward(x).square().mean();
          } catch (...) {
            error = std::current_exception();
          }
        }).join();
        if (error) {
          std::rethrow_exception(error);
        }
        return loss;
      });
      twin.step();
    }
    twin.expect_same_parameters();
  });
}

// Slots are packed from the plan: not depth times the largest group.
TEST_P(ExecutionTraps, AHugeVocabularyDoesNotMultiplyTheSlots) {
  run_ranks(GetParam(), [](World& world) {
    auto net = std::make_shared<VocabularyImpl>();
    EngineOptions options = group_per_layer();
    options.sharding.prefetch_depth = 2;
    auto engine = wrap(std::shared_ptr<torch::nn::Module>(net), options);
    const int64_t embedding = 50000 * 4 * 4;
    const int64_t head = 50000 * 5 * 4;
    const int64_t slots =
        engine
            .planned_memory()[static_cast<size_t>(MemoryPurpose::kGatherSlots)];
    EXPECT_LT(slots, world.size() == 1 ? 1 : head + embedding / 2);
    for (int step = 0; step < 3; ++step) {
      const auto ids = torch::randint(50000, {8});
      engine.backward(torch::nn::functional::cross_entropy(
          net->forward(ids), torch::randint(50000, {8})));
      engine.step();
    }
    EXPECT_EQ(
        engine.measured_memory()[static_cast<size_t>(
            MemoryPurpose::kGatherSlots)],
        slots);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ExecutionTraps, ::testing::Values(1, 2));

} // namespace tessera::tests::execution_traps_test
