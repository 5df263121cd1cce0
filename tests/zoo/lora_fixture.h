// SPDX-License-Identifier: Apache-2.0
#pragma once
// Adapters that PEFT made, and what models compute with them; see
// tests/fixture_makers/zoo_lora.py.

#include "tessera/runtime/comm/init.h"
#include "tessera/zoo/adapters/lora.h"
#include "zoo/model_fixture.h"

#include <filesystem>
#include <string>

namespace tessera::zoo {

inline constexpr const char* kAdapters[] = {
    "bert",
    "bert_biases",
    "bert_dora",
    "glm4",
    "gpt2",
    "gpt2_dora",
    "llama",
    "t5"};

class LoraFixture {
 public:
  explicit LoraFixture(const std::string& name)
      : folder_(fixture("lora") / name),
        base_(read_json(folder_ / "adapter_config.json")
                  .at("base_model_name_or_path")
                  .get<std::string>()),
        expected_(
            runtime::SafetensorsFile::open(folder_ / "expected.safetensors")) {}

  const std::filesystem::path& folder() const {
    return folder_;
  }
  const ModelFixture& base() const {
    return base_;
  }
  std::filesystem::path weights() const {
    return folder_ / "adapter_model.safetensors";
  }

  torch::Tensor expected(const std::string& name) const {
    return fixture_tensor(expected_, name);
  }
  /// Names that begin with `prefix`, without it.
  std::vector<std::string> names(const std::string& prefix) const {
    std::vector<std::string> found;
    for (const runtime::SafetensorsEntry& entry : expected_.entries()) {
      if (entry.name.starts_with(prefix)) {
        found.push_back(entry.name.substr(prefix.size()));
      }
    }
    return found;
  }

  ModelInput input() const {
    ModelInput input = base_.input();
    input.hidden_states = false;
    return input;
  }

 private:
  std::filesystem::path folder_;
  ModelFixture base_;
  runtime::SafetensorsFile expected_;
};

/// Writes a classifier whose weights are large enough to be lazy, for the
/// inputs of "bert_dora".
inline void write_large_bert(const std::filesystem::path& folder) {
  nlohmann::json config =
      read_json(fixture("models") / "bert_classifier" / "config.json");
  config["hidden_size"] = 96;
  config["intermediate_size"] = 144;
  save_pretrained(*from_config(config), folder);
}

inline void expect_outputs(
    const LoraFixture& reference,
    const ModelOutput& output) {
  const NamedTensors inputs = reference.base().tensors("in.");
  torch::Tensor mask;
  if (const auto found = inputs.find("attention_mask");
      !inputs.contains("decoder_input_ids") && found != inputs.end()) {
    mask = found->second;
  }
  expect_near(
      without_padding(output.logits, mask),
      without_padding(reference.expected("out.logits"), mask));
  expect_near(output.loss, reference.expected("out.loss"));
}

/// All that PEFT trains has a gradient here, and nothing else.
inline void expect_gradients(
    const LoraFixture& reference,
    const Model& model,
    const GradientOf& gradient_of = [](const torch::Tensor& parameter) {
      return parameter.grad();
    }) {
  const auto parameters = model.named_parameters();
  const WeightNames names = lora_names(model);
  size_t compared = 0;
  for (const NamedWeight& weight : names.weights()) {
    SCOPED_TRACE("gradient of " + weight.name);
    std::vector<torch::Tensor> gradients;
    for (const std::string& native : weight.native) {
      gradients.push_back(gradient_of(parameters[native]));
      ASSERT_TRUE(gradients.back().defined());
    }
    expect_near(
        weight.assemble(gradients), reference.expected("grad." + weight.name));
    ++compared;
  }
  EXPECT_EQ(compared, reference.names("grad.").size());
  for (const auto& item : parameters) {
    EXPECT_EQ(item.value().requires_grad(), names.has(item.key()))
        << item.key();
  }
}

/// The tensors of an adapter's file are PEFT's; of biases of whole modules PEFT
/// writes copies, which we do not.
inline void expect_same_adapter(
    const LoraFixture& reference,
    const std::filesystem::path& folder) {
  const auto native =
      runtime::SafetensorsFile::open(folder / "adapter_model.safetensors");
  const auto foreign = runtime::SafetensorsFile::open(reference.weights());
  size_t compared = 0;
  for (const runtime::SafetensorsEntry& entry : foreign.entries()) {
    if (entry.name.find(".original_module.") != std::string::npos ||
        entry.name.find(".modules_to_save.") != std::string::npos) {
      continue;
    }
    ASSERT_TRUE(native.contains(entry.name)) << entry.name;
    EXPECT_TRUE(fixture_tensor(native, entry.name)
                    .equal(fixture_tensor(foreign, entry.name)))
        << entry.name;
    ++compared;
  }
  EXPECT_EQ(native.entries().size(), compared);
}

/// What save_lora() and save_merged() have written to "adapter" and "merged",
/// on the first rank.
inline void check_saved(
    World& world,
    const LoraFixture& reference,
    const std::filesystem::path& folder) {
  if (world.rank() != 0) {
    return;
  }
  expect_same_adapter(reference, folder / "adapter");
  const auto merged = from_pretrained(folder / "merged");
  expect_outputs(reference, merged->forward(reference.input()));
}

} // namespace tessera::zoo
