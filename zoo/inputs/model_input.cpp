// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/inputs/model_input.h"

#include <utility>

namespace tessera::zoo {

namespace {

struct InputField {
  const char* name;
  at::Tensor ModelInput::*member;
};

constexpr InputField kInputFields[] = {
    {"input_ids", &ModelInput::input_ids},
    {"attention_mask", &ModelInput::attention_mask},
    {"position_ids", &ModelInput::position_ids},
    {"token_type_ids", &ModelInput::token_type_ids},
    {"pixel_values", &ModelInput::pixel_values},
    {"decoder_input_ids", &ModelInput::decoder_input_ids},
    {"decoder_attention_mask", &ModelInput::decoder_attention_mask},
    {"labels", &ModelInput::labels},
};

} // namespace

ModelInput ModelInput::with_tensors(
    const std::function<at::Tensor(const at::Tensor&)>& change) const {
  std::vector<std::pair<at::Tensor, at::Tensor>> changed;
  const auto apply = [&](at::Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    for (const auto& [before, after] : changed) {
      if (before.is_same(tensor)) {
        tensor = after;
        return;
      }
    }
    changed.emplace_back(tensor, change(tensor));
    tensor = changed.back().second;
  };
  ModelInput result = *this;
  for (const InputField& field : kInputFields) {
    apply(result.*field.member);
  }
  for (auto& [name, tensor] : result.others) {
    apply(tensor);
  }
  return result;
}

ModelInput ModelInput::from_named(const NamedTensors& tensors) {
  ModelInput input;
  input.others = tensors;
  for (const InputField& field : kInputFields) {
    if (const auto found = input.others.find(field.name);
        found != input.others.end()) {
      input.*field.member = found->second;
      input.others.erase(found);
    }
  }
  return input;
}

NamedTensors ModelInput::named() const {
  NamedTensors tensors = others;
  for (const InputField& field : kInputFields) {
    if ((this->*field.member).defined()) {
      tensors.emplace(field.name, this->*field.member);
    }
  }
  return tensors;
}

NamedTensors ModelOutput::named() const {
  NamedTensors tensors = others;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) {
      tensors.emplace(name, tensor);
    }
  };
  add("loss", loss);
  add("logits", logits);
  add("last_hidden_state", last_hidden_state);
  add("pooler_output", pooler_output);
  for (size_t i = 0; i < hidden_states.size(); ++i) {
    add("hidden_states." + std::to_string(i), hidden_states[i]);
  }
  return tensors;
}

} // namespace tessera::zoo
