// SPDX-License-Identifier: Apache-2.0
// How an engine ends, and what else may hold its dispatch key.
#include "engine/twin.h"
#include "support/ranks.h"

#include "tessera/sharding/interception/page_faults.h"
#include "tessera/sharding/interception/page_key.h"

namespace tessera::tests::unwrap_test {

class Unwrap : public ::testing::TestWithParam<int> {};

TEST_P(Unwrap, UnwrapGivesTheModuleBack) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 3; ++step) {
      twin.train(step);
    }
    twin.wrapped_backward(3, mean_square);
    twin.engine.unwrap();
    expect_throws([&] { twin.engine.step(); }, {"step", "unwrapped"});
    for (const auto& item : twin.wrapped->named_parameters()) {
      EXPECT_FALSE(item.value().grad().defined()) << item.key();
      EXPECT_FALSE(sharding::has_page_key(item.value())) << item.key();
      EXPECT_NE(item.value().data_ptr(), nullptr);
      EXPECT_TRUE(torch::allclose(
          item.value(),
          twin.plain->named_parameters()[item.key()],
          1e-9,
          1e-11));
    }
    { const Engine gone = std::move(twin.engine); }
    // It trains as any module does, without the other ranks.
    auto twice = make_net<StackImpl>();
    {
      const at::NoGradGuard guard;
      for (const auto& item : twin.plain->named_parameters()) {
        twice->named_parameters()[item.key()].copy_(item.value());
      }
    }
    torch::optim::SGD expected_sgd(
        twice->parameters(), torch::optim::SGDOptions(0.1));
    torch::optim::SGD sgd(
        twin.wrapped->parameters(), torch::optim::SGDOptions(0.1));
    if (world.rank() == 0) {
      for (int step = 0; step < 2; ++step) {
        expected_sgd.zero_grad();
        sgd.zero_grad();
        mean_square(*twice, batch_of(step, 0)).backward();
        mean_square(*twin.wrapped, batch_of(step, 0)).backward();
        expected_sgd.step();
        sgd.step();
      }
      for (const auto& item : twin.wrapped->named_parameters()) {
        EXPECT_TRUE(torch::allclose(
            item.value(), twice->named_parameters()[item.key()], 1e-9, 1e-11))
            << item.key();
      }
    }
  });
}

TEST_P(Unwrap, UnwrapThenWrapAgain) {
  run_ranks(GetParam(), [](World&) {
    auto plain = make_net<StackImpl>();
    auto net = make_net<StackImpl>();
    for (int round = 0; round < 3; ++round) {
      Twin<StackImpl> twin(plain, net);
      twin.train(2 * round);
      twin.train(2 * round + 1);
      twin.expect_same_parameters("in round " + std::to_string(round));
      twin.engine.unwrap();
    }
  });
}

TEST_P(Unwrap, EngineGoneWithoutUnwrap) {
  run_ranks(GetParam(), [](World& world) {
    auto net = make_net<StackImpl>();
    {
      Twin<StackImpl> twin(make_net<StackImpl>(), net);
      twin.train(0);
      mean_square(*net, batch_of(1, world.rank())).backward();
    }
    const std::initializer_list<const char*> parts{
        "parameter 'first.", "gone", "unwrap()"};
    expect_throws([&] { mean_square(*net, batch_of(2, world.rank())); }, parts);
    expect_throws([&] { (void)net->first->weight.data_ptr(); }, parts);
    for (const auto& parameter : net->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
    expect_throws(
        [&] { wrap(net, group_per_layer()); }, {"parameter 'first.", "gone"});
  });
}

TEST_P(Unwrap, GradientsKeptAfterTheEngineAreAnError) {
  run_ranks(GetParam(), [](World& world) {
    at::Tensor gradient;
    {
      Twin<StackImpl> twin;
      mean_square(*twin.wrapped, batch_of(1, world.rank())).backward();
      gradient = twin.wrapped->last->weight.grad();
    }
    expect_throws([&] { (void)gradient.norm().item<double>(); }, {"gone"});
  });
}

TEST(UnwrapOnce, TwoEnginesShareOneRegistration) {
  run_ranks(2, [](World&) {
    Twin<StackImpl> one;
    Twin<StackImpl> two;
    sharding::ensure_page_key_registered();
    for (int step = 0; step < 3; ++step) {
      one.train(step);
      two.train(step + 10);
    }
    one.expect_same_parameters();
    two.expect_same_parameters();
  });
}

namespace {

void do_nothing(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet /*keys*/,
    torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard{
      c10::DispatchKeySet{c10::DispatchKey::TESTING_ONLY_GenericWrapper}};
  op.callBoxed(stack);
}

} // namespace

TEST(UnwrapOnce, KeyThatAnotherLibraryHolds) {
  run_ranks(1, [](World&) {
    torch::Library other(
        torch::Library::IMPL,
        "_",
        c10::DispatchKey::TESTING_ONLY_GenericWrapper,
        __FILE__,
        __LINE__);
    other.fallback(torch::CppFunction::makeFromBoxedFunction<&do_nothing>());
    auto net = make_net<StackImpl>();
    for (int attempt = 0; attempt < 2; ++attempt) {
      expect_throws(
          [&] { wrap(net, group_per_layer()); },
          {"another library", "TESTING_ONLY_GenericWrapper"});
    }
    EXPECT_TRUE(net->forward(batch_of(0, 0)).defined());
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Unwrap, ::testing::Range(1, 4));

} // namespace tessera::tests::unwrap_test
