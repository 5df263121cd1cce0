// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/inputs/input_kind.h"

#include <array>

namespace tessera::zoo {

namespace {

constexpr std::array<std::pair<std::string_view, InputKind>, 18> kInputs = {{
    {"input_ids", InputKind::kTokens},
    {"attention_mask", InputKind::kInteger},
    {"position_ids", InputKind::kInteger},
    {"token_type_ids", InputKind::kInteger},
    {"global_attention_mask", InputKind::kInteger},
    {"sep", InputKind::kInteger},
    {"context", InputKind::kInteger},
    {"span", InputKind::kInteger},
    {"decoder_input_ids", InputKind::kTokens},
    {"decoder_attention_mask", InputKind::kInteger},
    {"labels", InputKind::kLabels},
    {"next_sentence_label", InputKind::kInteger},
    {"start_positions", InputKind::kInteger},
    {"end_positions", InputKind::kInteger},
    {"pixel_values", InputKind::kPixels},
    {"second_pixel_values", InputKind::kPixels},
    {"bool_masked_pos", InputKind::kInteger},
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
  return InputKind::kInteger;
}

} // namespace tessera::zoo
