// SPDX-License-Identifier: Apache-2.0
// A checkpoint of as many parameters as a large mixture of experts has is
// written and read in seconds; in quadratic time it would be minutes.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/ranks.h"

namespace tessera::engine::many_parameters_test {

namespace {

using namespace tests;

struct ManyImpl : torch::nn::Module {
  explicit ManyImpl(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(register_parameter(
          "p" + std::to_string(i),
          torch::full({i % 3}, static_cast<float>(i))));
    }
  }
  std::vector<at::Tensor> values;
};
TORCH_MODULE(Many);

} // namespace

TEST(ManyParameters, AreSavedAndLoaded) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& /*world*/) {
    constexpr int64_t kCount = 20000;
    Many saved(kCount);
    auto engine = wrap(saved, EngineOptions{.log_memory = false});
    engine.save(folder.path());
    Many loaded(kCount);
    for (at::Tensor& value : loaded->values) {
      torch::NoGradGuard no_grad;
      value.zero_();
    }
    auto other = wrap(loaded, EngineOptions{.log_memory = false});
    other.load(folder.path());
    int64_t i = 0;
    other.for_each_parameter(
        [&](const std::string& /*name*/, const at::Tensor& value) {
          EXPECT_TRUE((value == static_cast<float>(i++)).all().item<bool>());
        });
    EXPECT_EQ(i, kCount);
  });
}

} // namespace tessera::engine::many_parameters_test
