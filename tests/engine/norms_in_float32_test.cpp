// SPDX-License-Identifier: Apache-2.0
// precision.norms_in_float32: parameters, statistics and sums over rows are
// float32; activations are not cast for that.
#include "engine/twin.h"
#include "support/cast_counter.h"
#include "support/ranks.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"
#include "tessera/zoo/layers/norm.h"

#include <string>
#include <tuple>

namespace tessera::tests::norms_in_float32_test {

namespace {

constexpr int64_t kRows = 300;
constexpr int64_t kFeatures = 16;

/// A norm of x [kRows, kFeatures], with weight and bias away from 1 and 0.
struct NormCase {
  std::string name;
  std::function<torch::nn::AnyModule()> make;
};

torch::nn::AnyModule zoo_norm(zoo::NormKind kind) {
  return torch::nn::AnyModule(
      zoo::Norm(zoo::NormOptions{.kind = kind, .features = kFeatures}));
}

const std::vector<NormCase>& norm_cases() {
  using torch::nn::AnyModule;
  static const std::vector<NormCase> cases = {
      {"LayerNorm",
       [] {
         return AnyModule(
             torch::nn::LayerNorm(torch::nn::LayerNormOptions({kFeatures})));
       }},
      {"BatchNorm",
       [] { return AnyModule(torch::nn::BatchNorm1d(kFeatures)); }},
      {"GroupNorm",
       [] {
         return AnyModule(
             torch::nn::GroupNorm(torch::nn::GroupNormOptions(4, kFeatures)));
       }},
      {"ZooLayerNorm", [] { return zoo_norm(zoo::NormKind::kLayerNorm); }},
      {"ZooRmsNorm", [] { return zoo_norm(zoo::NormKind::kRmsNorm); }}};
  return cases;
}

/// A norm as a part of a model.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(const NormCase& which) : norm(which.make()) {
    register_module("norm", norm.ptr());
    const c10::NoGradGuard no_grad;
    for (auto& parameter : norm.ptr()->parameters()) {
      parameter.uniform_(0.5, 1.5);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    return norm.forward(x);
  }
  torch::nn::AnyModule norm;
};
TORCH_MODULE(Net);

/// Notes what is saved.
struct NotingSink : runtime::ActivationSink {
  struct Kept : runtime::SavedActivation {
    explicit Kept(at::Tensor tensor) : tensor(std::move(tensor)) {}
    at::Tensor give() override {
      return tensor;
    }
    at::Tensor tensor;
  };
  std::unique_ptr<runtime::SavedActivation> take(const at::Tensor& tensor, bool)
      override {
    saved.push_back(tensor.detach());
    return std::make_unique<Kept>(tensor.detach());
  }
  std::vector<at::Tensor> saved;
};

class NormsInFloat32 : public ::testing::TestWithParam<
                           std::tuple<NormCase, at::ScalarType, int>> {
 protected:
  static const NormCase& norm() {
    return std::get<NormCase>(GetParam());
  }
  static at::ScalarType dtype() {
    return std::get<at::ScalarType>(GetParam());
  }
  static EngineOptions options() {
    EngineOptions options = group_per_layer();
    options.precision.parameters = dtype();
    options.loss_scale.fixed = 1;
    return options;
  }
};

} // namespace

TEST_P(NormsInFloat32, ComputesAsInFloat32WithoutCastsOfActivations) {
  run_ranks(std::get<int>(GetParam()), [](World&) {
    torch::manual_seed(1);
    Net net(norm());
    Net plain(norm());
    std::vector<at::Tensor> plain_parameters;
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      plain_parameters.push_back(plain->parameters()[i]);
      plain_parameters[i].set_data(net->parameters()[i].detach().clone());
    }
    const at::Tensor x =
        (torch::randn({kRows, kFeatures}) * 2 + 1).to(dtype()).requires_grad_();
    const at::Tensor gradient = torch::randn({kRows, kFeatures}).to(dtype());
    auto engine = wrap(net, options());
    for (const at::Tensor& parameter : net->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), at::kFloat);
    }

    const auto sink = std::make_shared<NotingSink>();
    at::Tensor y;
    {
      const CastCounter casts(x.numel());
      {
        const runtime::SavedTensorScope scope(sink);
        y = net(x);
      }
      EXPECT_EQ(y.scalar_type(), dtype());
      engine.backward((y * gradient).sum());
      EXPECT_EQ(casts.count(), 0);
    }
    for (const at::Tensor& saved : sink->saved) {
      EXPECT_TRUE(
          saved.scalar_type() != at::kFloat || saved.numel() < x.numel())
          << "a float32 tensor of sizes " << saved.sizes() << " is saved";
    }

    const at::Tensor wide = x.detach().to(at::kFloat).requires_grad_();
    const at::Tensor expected = plain(wide);
    (expected * gradient).sum().backward();
    // One rounding of numbers of up to 8, or of the largest gradient.
    const double unit = dtype() == at::kHalf ? 0x1p-11 : 0x1p-8;
    const auto is_rounded = [&](const at::Tensor& found,
                                const at::Tensor& exact) {
      return ((found.to(at::kFloat) - exact).abs().max() <=
              unit * exact.abs().max())
          .item<bool>();
    };
    EXPECT_TRUE(is_rounded(y, expected));
    EXPECT_TRUE(is_rounded(x.grad(), wide.grad()));
    for (size_t i = 0; i < plain_parameters.size(); ++i) {
      const at::Tensor found = engine.grad(net->parameters()[i]);
      const at::Tensor& exact = plain_parameters[i].grad();
      EXPECT_EQ(found.scalar_type(), at::kFloat);
      EXPECT_TRUE(torch::allclose(found, exact, 1e-4, 1e-4))
          << (found - exact).abs().max();
    }
    EXPECT_TRUE(engine.step());
  });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    NormsInFloat32,
    ::testing::Combine(
        ::testing::ValuesIn(norm_cases()),
        ::testing::Values(at::kBFloat16, at::kHalf),
        ::testing::Values(1, 2)),
    [](const auto& info) {
      return std::get<NormCase>(info.param).name +
             c10::toString(std::get<at::ScalarType>(info.param)) + "On" +
             std::to_string(std::get<int>(info.param));
    });

} // namespace tessera::tests::norms_in_float32_test
