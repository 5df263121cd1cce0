// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/inputs/input_kind.h"

#include <array>

namespace tessera::zoo {

namespace {

constexpr std::array<std::pair<std::string_view, InputKind>, 18> kInputs = {{
    {"input_ids", InputKind::kTokens},
    {"attention_mask", InputKind::kWhole},
    {"position_ids", InputKind::kWhole},
    {"token_type_ids", InputKind::kWhole},
    {"global_attention_mask", InputKind::kWhole},
    {"sep", InputKind::kWhole},
    {"context", InputKind::kWhole},
    {"span", InputKind::kWhole},
    {"decoder_input_ids", InputKind::kTokens},
    {"decoder_attention_mask", InputKind::kWhole},
    {"labels", InputKind::kLabels},
    {"next_sentence_label", InputKind::kWhole},
    {"start_positions", InputKind::kWhole},
    {"end_positions", InputKind::kWhole},
    {"pixel_values", InputKind::kPixels},
    {"second_pixel_values", InputKind::kPixels},
    {"bool_masked_pos", InputKind::kWhole},
    {"noise", InputKind::kNumbers},
}};

} // namespace

std::span<const std::pair<std::string_view, InputKind>> known_inputs() {
  return kInputs;
}

InputKind kind_of_input(const std::string& name) {
  for (const auto& [known, kind] : kInputs) {
    if (known == name) {
      return kind;
    }
  }
  return InputKind::kWhole;
}

} // namespace tessera::zoo
