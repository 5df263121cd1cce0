// SPDX-License-Identifier: Apache-2.0
// A checkpoint with a frozen layer continues where the layer is trained.
#include "engine/checkpoint/checkpoint_support.h"
#include "support/ranks.h"

namespace tessera::tests::frozen_state_test {

class FrozenState : public ::testing::TestWithParam<int> {};

// As in plain LibTorch, where an optimizer has no state of a parameter that it
// has not seen: the moments of the others go on.
TEST_P(FrozenState, BeginsWithTheFirstStep) {
  const TemporaryFolder folder;
  run_ranks(GetParam(), [&](World&) {
    EngineOptions options = group_per_layer();
    options.optimizer.ema_decay = 0.5;
    Twin<StackImpl> frozen(options);
    const auto freeze = [](StackImpl& net, bool trains) {
      net.first->weight.requires_grad_(trains);
      net.first->bias.requires_grad_(trains);
    };
    {
      auto plain = make_net<StackImpl>();
      auto wrapped = make_net<StackImpl>();
      freeze(*plain, false);
      freeze(*wrapped, false);
      Twin<StackImpl> twin(plain, wrapped, options);
      twin.train(0);
      twin.train(1);
      twin.engine.save(folder.path());
      freeze(*plain, true);

      frozen.train(7); // has moments, which end here
      frozen.engine.load(folder.path());
      {
        const auto averaged = frozen.engine.ema();
        const auto before = plain->first->weight.detach();
        frozen.engine.for_each_parameter(
            [&](const std::string& name, const at::Tensor& value) {
              if (name == "first.weight") {
                EXPECT_TRUE(value.equal(before));
              }
            });
      }
      for (int step = 2; step < 4; ++step) {
        const auto loss = [](StackImpl& net, const at::Tensor& x) {
          return net.forward(x).square().mean();
        };
        twin.plain_backward(step, loss);
        twin.optimizer.step();
        twin.optimizer.zero_grad();
        frozen.wrapped_backward(step, loss);
        frozen.engine.step();
      }
      const auto expected = plain->named_parameters();
      frozen.engine.for_each_parameter(
          [&](const std::string& name, const at::Tensor& value) {
            EXPECT_TRUE(torch::allclose(value, expected[name], 1e-9, 1e-11))
                << name;
          });
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, FrozenState, ::testing::Values(1, 2));

} // namespace tessera::tests::frozen_state_test
