// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models over ranks against the same model on one.

#include "support/tensor_parts.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/tensor_parallel/tensor_specs.h"
#include "zoo/model_fixture.h"

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

namespace tessera::zoo {

/// A fixture's model with a changed configuration and weights of N(0, 0.2), in
/// a folder of this rank's; the numbers are the same on all ranks.
class ChangedModel {
 public:
  ChangedModel(const std::string& name, const nlohmann::json& changes) {
    nlohmann::json config = read_json(fixture("models") / name / "config.json");
    config.update(changes);
    torch::manual_seed(5);
    const auto model = from_config(config);
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& parameter : model->parameters()) {
      parameter.normal_(0, 0.2);
    }
    save_pretrained(*model, folder());
  }

  std::filesystem::path folder() const {
    return parent_.path() / "model";
  }

 private:
  TemporaryFolder parent_;
};

/// Token ids with labels that are all counted, the same on all ranks.
inline ModelInput labelled_input(int64_t rows, int64_t length) {
  torch::manual_seed(11);
  ModelInput input;
  input.input_ids = torch::randint(4, 61, {rows, length});
  input.labels = input.input_ids.clone();
  return input;
}

/// The whole of a gradient of which each rank has a part.
class FullGradients {
 public:
  explicit FullGradients(const Model& model, Communicator& group)
      : specs_(specs_in(model)), group_(group) {}

  torch::Tensor operator()(const torch::Tensor& parameter) const {
    return tests::gather_full(
        parameter.grad(), specs_.at(parameter.unsafeGetTensorImpl()), group_);
  }

 private:
  TensorSpecs specs_;
  Communicator& group_;
};

/// Averaged over ranks that have the same parameter; none counts as zeros.
inline torch::Tensor averaged_gradient(
    const torch::Tensor& parameter,
    Communicator& group) {
  const torch::Tensor sum = parameter.grad().defined()
                                ? parameter.grad().clone()
                                : torch::zeros_like(parameter);
  group.all_reduce_sum(sum, "a test's average").wait();
  return sum / group.size();
}

/// Every parameter that is here against the plain model's.
/// @param group_of the ranks that have the same parameter and other tokens.
/// @param tensor null where layers are not divided.
inline void expect_plain_gradients(
    const Model& divided,
    const Model& plain,
    const std::function<Communicator&(const std::string& name)>& group_of,
    Communicator* tensor) {
  const TensorSpecs specs = specs_in(divided);
  const auto expected = plain.named_parameters();
  for (const auto& item : divided.named_parameters()) {
    SCOPED_TRACE("gradient of " + item.key());
    torch::Tensor gradient =
        averaged_gradient(item.value(), group_of(item.key()));
    if (tensor != nullptr) {
      gradient = tests::gather_full(
          gradient, specs.at(item.value().unsafeGetTensorImpl()), *tensor);
    }
    const torch::Tensor& twin = expected[item.key()];
    expect_near(
        gradient,
        twin.grad().defined() ? twin.grad() : torch::zeros_like(twin));
  }
}

} // namespace tessera::zoo
