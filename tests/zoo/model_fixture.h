// SPDX-License-Identifier: Apache-2.0
#pragma once
// Holding a model against what transformers computed; see
// tests/fixture_makers/zoo_models.py.

#include "support/temporary_folder.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/zoo/inputs/tensor_files.h"
#include "tessera/zoo/layers/losses.h"
#include "tessera/zoo/models/pretrained.h"
#include "zoo/support.h"
#include "zoo/tensor_support.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>

namespace tessera::zoo {

/// The tensors of `input` on a device.
inline ModelInput input_on(const ModelInput& input, c10::Device device) {
  NamedTensors moved = input.named();
  for (auto& [name, tensor] : moved) {
    tensor = tensor.to(device);
  }
  return ModelInput::from_named(moved);
}

/// A folder of fixtures: the model and expected.safetensors.
class ModelFixture {
 public:
  explicit ModelFixture(const std::string& name)
      : folder_(fixture("models") / name),
        expected_(
            runtime::SafetensorsFile::open(folder_ / "expected.safetensors")) {}

  const std::filesystem::path& folder() const {
    return folder_;
  }

  /// Tensors whose names begin with `prefix`, without it.
  NamedTensors tensors(const std::string& prefix) const {
    NamedTensors found;
    for (const runtime::SafetensorsEntry& entry : expected_.entries()) {
      if (entry.name.starts_with(prefix)) {
        found.emplace(
            entry.name.substr(prefix.size()),
            fixture_tensor(expected_, entry.name));
      }
    }
    return found;
  }

  ModelInput input() const {
    ModelInput input = ModelInput::from_named(tensors("in."));
    input.hidden_states = true;
    return input;
  }

 private:
  std::filesystem::path folder_;
  runtime::SafetensorsFile expected_;
};

/// Whatever stands where a token is padding means nothing: kernels differ in
/// what they make of rows that see nothing.
inline torch::Tensor without_padding(
    const torch::Tensor& tensor,
    const torch::Tensor& attention_mask) {
  if (!attention_mask.defined() || tensor.dim() != 3 ||
      tensor.size(1) != attention_mask.size(1)) {
    return tensor;
  }
  return tensor * attention_mask.unsqueeze(-1);
}

/// All results that transformers has are here, and equal.
inline void expect_outputs(
    const ModelFixture& reference,
    const ModelOutput& output) {
  const NamedTensors found = output.named();
  const NamedTensors inputs = reference.tensors("in.");
  const auto mask = inputs.find("attention_mask");
  const torch::Tensor padding =
      mask == inputs.end() ? torch::Tensor() : mask->second;
  const NamedTensors expected = reference.tensors("out.");
  for (const auto& [name, tensor] : expected) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(found.contains(name));
    expect_near(
        without_padding(found.at(name), padding),
        without_padding(tensor, padding));
  }
  // The second part of a loss is no output there.
  EXPECT_EQ(found.size() - found.count(kSecondLoss), expected.size());
}

/// The loss whose gradients the fixtures have: the model's own, or, where there
/// is none, one that weighs every number.
inline torch::Tensor loss_of(
    const ModelOutput& output,
    const ModelInput& input) {
  if (output.loss.defined()) {
    return output.loss;
  }
  const torch::Tensor hidden =
      without_padding(output.last_hidden_state, input.attention_mask);
  return (hidden * torch::linspace(-1, 1, hidden.numel()).view_as(hidden))
      .sum();
}

using GradientOf = std::function<torch::Tensor(const torch::Tensor&)>;

/// @param gradient_of the whole gradient of a parameter; called for all of them
///     on all ranks.
inline void expect_gradients(
    const ModelFixture& reference,
    Model& model,
    const GradientOf& gradient_of = [](const torch::Tensor& parameter) {
      return parameter.grad();
    }) {
  const NamedTensors expected = reference.tensors("grad.");
  const auto parameters = model.named_parameters();
  size_t compared = 0;
  const WeightNames names(model, model.names());
  for (const NamedWeight& weight : names.weights()) {
    if (!expected.contains(weight.name)) {
      continue;
    }
    SCOPED_TRACE("gradient of " + weight.name);
    std::vector<torch::Tensor> gradients;
    for (const std::string& native : weight.native) {
      gradients.push_back(gradient_of(parameters[native]));
      ASSERT_TRUE(gradients.back().defined());
    }
    expect_near(weight.assemble(gradients), expected.at(weight.name));
    ++compared;
  }
  EXPECT_EQ(compared, expected.size());
  EXPECT_GE(compared, 3);
}

/// Saved again, the folder has the same bytes.
inline void expect_same_bytes(
    const std::filesystem::path& folder,
    const std::filesystem::path& other) {
  // Not EXPECT_EQ, which would print them.
  EXPECT_TRUE(
      runtime::read_text_file(folder / "model.safetensors") ==
      runtime::read_text_file(other / "model.safetensors"))
      << "model.safetensors differ";
  EXPECT_EQ(
      runtime::read_text_file(folder / "config.json"),
      runtime::read_text_file(other / "config.json"));
}

/// The fixture's folder with some of its tensors changed, or under other names.
inline void write_changed(
    const std::filesystem::path& from,
    const std::filesystem::path& to,
    const std::function<void(NamedTensors&)>& change) {
  const auto file = runtime::SafetensorsFile::open(from / "model.safetensors");
  NamedTensors tensors;
  for (const runtime::SafetensorsEntry& entry : file.entries()) {
    tensors.emplace(entry.name, fixture_tensor(file, entry.name));
  }
  change(tensors);
  write_named_tensors(to / "model.safetensors", tensors);
  std::filesystem::copy_file(from / "config.json", to / "config.json");
}

/// Everything that a model must hold to count as one of the zoo's.
inline void expect_equals_transformers(const std::string& name) {
  const ModelFixture reference(name);
  const auto model = from_pretrained(reference.folder());
  const ModelInput input = reference.input();
  const ModelOutput output = model->forward(input);
  expect_outputs(reference, output);
  loss_of(output, input).backward();
  expect_gradients(reference, *model);

  const TemporaryFolder saved;
  save_pretrained(*model, saved.path() / "model");
  expect_same_bytes(reference.folder(), saved.path() / "model");
}

} // namespace tessera::zoo
