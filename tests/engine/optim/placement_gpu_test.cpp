// SPDX-License-Identifier: Apache-2.0
// Optimizer state of CUDA parameters: on the device and on the host, in
// float32 and with master weights, the same bits; both are saved and loaded.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/cuda_devices.h"
#include "support/ranks.h"
#include "tessera/runtime/core/cuda_backend.h"

namespace tessera {

namespace {

using namespace testing;

std::map<std::string, at::Tensor> train_on_cuda(
    const OptimizerOptions& optimizer,
    std::optional<at::ScalarType> precision,
    const std::filesystem::path& folder) {
  torch::manual_seed(1);
  auto net = torch::nn::Sequential(
      torch::nn::Linear(7, 13), torch::nn::Tanh(), torch::nn::Linear(13, 3));
  net->to(at::kCUDA);
  auto options = group_per_layer();
  options.optimizer = optimizer;
  options.sharding.precision.parameters = precision;
  auto engine = wrap(net, options);
  const auto train = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      torch::manual_seed(i);
      const auto x = torch::randn({5, 7}).to(at::kCUDA);
      engine.backward(net->forward(x).square().mean());
      engine.step();
    }
  };
  train(3);
  engine.save(folder);
  train(2);
  engine.load(folder);
  train(2);
  return values_of(engine, *net);
}

} // namespace

TEST(PlacementGpu, HostStateGivesTheBitsOfDeviceState) {
  if (count_cuda_devices() == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  const TemporaryFolder folder;
  run_ranks(1, [&](World&) {
    load_cuda_backend();
    const UpdateRule rules[] = {
        AdamWOptions{.sqrt_rounding = SqrtRounding::kCorrect},
        SgdOptions{.momentum = 0.9},
        LionOptions{}};
    for (const UpdateRule& rule : rules) {
      for (const std::optional<at::ScalarType> precision :
           {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
        OptimizerOptions optimizer;
        optimizer.rule = rule;
        const auto device =
            train_on_cuda(optimizer, precision, folder / "device");
        optimizer.placement = StatePlacement::kHost;
        const auto host = train_on_cuda(optimizer, precision, folder / "host");
        expect_equal(host, device, name_of(rule));
      }
    }
  });
}

} // namespace tessera
