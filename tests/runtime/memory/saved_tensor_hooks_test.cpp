// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/saved_tensor_hooks.h"

#include "support/expect_error.h"
#include "tessera/runtime/dry_run/dry_run.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

namespace tessera::runtime::saved_tensor_hooks_test {

namespace {

/// A user's hooks: they count, and keep a copy.
struct UsersHooks : torch::autograd::SavedVariableHooks {
  static inline bool on = false;
  static inline int packed = 0;

  void call_pack_hook(const at::Tensor& tensor) override {
    ++packed;
    copy = tensor.detach().clone();
  }
  at::Tensor call_unpack_hook() override {
    return copy;
  }
  at::Tensor copy;
};

/// An engine that somebody put in place before.
struct UsersEngine : torch::autograd::Engine {
  ~UsersEngine() override {
    stop();
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks>
  get_default_saved_variable_hooks() override {
    return UsersHooks::on ? std::make_unique<UsersHooks>() : nullptr;
  }
  static torch::autograd::Engine& instance() {
    static UsersEngine engine;
    return engine;
  }
};

/// Keeps copies, and says what it was asked.
struct CopyingSink : ActivationSink {
  struct Copy : SavedActivation {
    Copy(at::Tensor tensor, std::atomic<int>& alive)
        : tensor(std::move(tensor)), alive(alive) {
      ++alive;
    }
    ~Copy() override {
      --alive;
    }
    at::Tensor give() override {
      return tensor;
    }
    at::Tensor tensor;
    std::atomic<int>& alive;
  };
  std::unique_ptr<SavedActivation> take(const at::Tensor& tensor, bool to_host)
      override {
    ++taken;
    to_host_taken += to_host ? 1 : 0;
    return std::make_unique<Copy>(tensor.detach().clone(), alive);
  }
  std::atomic<int> taken{0};
  std::atomic<int> to_host_taken{0};
  std::atomic<int> alive{0};
};

at::Tensor leaf() {
  return torch::full({3}, 2.0).requires_grad_();
}

class SavedTensorHooks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // LibTorch's own has run before another takes its place.
    leaf().square().sum().backward();
    torch::autograd::set_default_engine_stub(&UsersEngine::instance);
    leaf().square().sum().backward();
  }
  void TearDown() override {
    UsersHooks::on = false;
    UsersHooks::packed = 0;
  }

  std::shared_ptr<CopyingSink> sink = std::make_shared<CopyingSink>();
};

} // namespace

TEST_F(SavedTensorHooks, OnlyInsideOfAScope) {
  const auto x = leaf();
  EXPECT_FALSE(saved_tensors_have_sink());
  auto before = x.square().sum();
  at::Tensor inside;
  {
    const SavedTensorScope scope(sink);
    EXPECT_TRUE(saved_tensors_have_sink());
    inside = x.exp().sum();
    EXPECT_EQ(sink->taken, 1);
    const torch::NoGradGuard no_grad;
    x.exp();
    EXPECT_EQ(sink->taken, 1);
  }
  EXPECT_FALSE(saved_tensors_have_sink());
  auto after = x.square().sum();
  EXPECT_EQ(sink->taken, 1);
  EXPECT_EQ(sink->alive, 1);
  inside.backward(); // a graph outlives the scope
  EXPECT_EQ(sink->alive, 0);
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({3}, 2.0).exp()));
  before.backward();
  after.backward();
}

/// The stages of a planned pipeline are dry runs on threads of one process.
TEST_F(SavedTensorHooks, DryRunsHaveScopesOfTheirOwn) {
  const auto others = std::make_shared<CopyingSink>();
  const SavedTensorScope scope(sink);
  std::promise<void> begun;
  std::promise<void> looked;
  std::thread stage([&] {
    const DryRun run(c10::kCPU);
    EXPECT_FALSE(saved_tensors_have_sink());
    const SavedTensorScope own(others);
    EXPECT_TRUE(saved_tensors_have_sink());
    begun.set_value();
    looked.get_future().wait();
    leaf().exp();
  });
  begun.get_future().wait();
  EXPECT_TRUE(saved_tensors_have_sink());
  leaf().exp();
  EXPECT_EQ(sink->taken, 1);
  EXPECT_EQ(others->taken, 0);
  looked.set_value();
  stage.join();
  EXPECT_EQ(sink->taken, 1);
  EXPECT_EQ(others->taken, 1);
}

TEST_F(SavedTensorHooks, TheLatestScopeTakesAll) {
  const auto other = std::make_shared<CopyingSink>();
  const auto x = leaf();
  auto outer = std::make_unique<SavedTensorScope>(sink);
  auto inner = std::make_unique<SavedTensorScope>(other);
  x.exp();
  EXPECT_EQ(other->taken, 1);
  outer.reset(); // in any order
  x.exp();
  EXPECT_EQ(other->taken, 2);
  inner.reset();
  x.exp();
  EXPECT_EQ(other->taken, 2);
  EXPECT_EQ(sink->taken, 0);
}

TEST_F(SavedTensorHooks, UsersOwnHooksComeFirst) {
  const SavedTensorScope scope(sink);
  UsersHooks::on = true;
  const auto x = leaf();
  x.exp().sum().backward();
  EXPECT_EQ(UsersHooks::packed, 1);
  EXPECT_EQ(sink->taken, 0);
  UsersHooks::on = false;
  x.exp().sum().backward();
  EXPECT_EQ(UsersHooks::packed, 1);
  EXPECT_EQ(sink->taken, 1);
}

TEST_F(SavedTensorHooks, ChangesInPlaceAreFound) {
  const SavedTensorScope scope(sink);
  const auto x = leaf();
  auto y = x * 3;
  auto loss = y.square().sum();
  y.add_(1);
  expect_error(
      [&] { loss.backward(); },
      {"modified by an inplace operation", "shape [3]", "version 1"});
  // The output of an operator in place is saved after the change.
  auto z = (x * 3).exp_().sum();
  z.backward();
}

TEST_F(SavedTensorHooks, TheHostIsAskedForInAScopeOfItsThread) {
  const SavedTensorScope scope(sink);
  const auto x = leaf();
  {
    const SaveToHostScope to_host(true);
    x.exp();
    {
      const SaveToHostScope inside(false);
      x.exp();
    }
    x.exp();
    std::thread([&] { x.exp(); }).join();
  }
  x.exp();
  EXPECT_EQ(sink->taken, 5);
  EXPECT_EQ(sink->to_host_taken, 2);
}

TEST_F(SavedTensorHooks, BackwardInsideOfBackwardAndOverNodesOfUsers) {
  struct Twice : torch::autograd::Function<Twice> {
    static at::Tensor forward(
        torch::autograd::AutogradContext* context,
        const at::Tensor& x) {
      context->save_for_backward({x});
      return x * x;
    }
    static torch::autograd::variable_list backward(
        torch::autograd::AutogradContext* context,
        const torch::autograd::variable_list& gradients) {
      const torch::AutoGradMode with_gradients(true);
      auto x = context->get_saved_variables()[0].detach().requires_grad_();
      (x * x).backward(gradients[0]);
      return {x.grad()};
    }
  };
  const SavedTensorScope scope(sink);
  const auto x = leaf();
  Twice::apply(x.exp()).sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), 2 * (2 * x.detach()).exp()));
  EXPECT_EQ(sink->alive, 0);
}

TEST_F(SavedTensorHooks, ThreadsSaveAndScopesComeAndGo) {
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!done) {
        const auto x = leaf();
        x.square().sum().backward();
        wrong += torch::equal(x.grad(), torch::full({3}, 4.0)) ? 0 : 1;
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    const SavedTensorScope scope(sink);
    leaf().exp();
  }
  done = true;
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(sink->alive, 0);
}

} // namespace tessera::runtime::saved_tensor_hooks_test
