// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/blanks.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/generation/prompt_batch.h"

#include <torch/types.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <optional>

namespace tessera::zoo {

namespace {

std::optional<int64_t> first_known(
    const text::Tokenizer& tokenizer,
    std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto id = tokenizer.id_of(name)) {
      return id;
    }
  }
  return std::nullopt;
}

int64_t needed(
    const text::Tokenizer& tokenizer,
    std::initializer_list<const char*> names) {
  const auto id = first_known(tokenizer, names);
  TESSERA_CHECK(
      id.has_value(),
      "the tokenizer has no token '{}', which a model that fills blanks needs; use the tokenizer of the model, with its added_tokens.json",
      *names.begin());
  return *id;
}

/// The row of positions in the context, or of positions within blanks.
std::vector<int64_t> positions_of(const BlankedText& text, bool within) {
  std::vector<int64_t> positions;
  for (size_t i = 0; i < text.context.size(); ++i) {
    positions.push_back(within ? 0 : static_cast<int64_t>(i));
  }
  for (size_t blank = 0; blank <= text.filled.size(); ++blank) {
    const size_t tokens =
        blank < text.filled.size() ? text.filled[blank].size() : 0;
    for (size_t i = 0; i <= tokens; ++i) {
      positions.push_back(
          within ? static_cast<int64_t>(i) + 1 : text.blanks[blank]);
    }
  }
  return positions;
}

bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

} // namespace

BlankTokens BlankTokens::of(const text::Tokenizer& tokenizer) {
  BlankTokens tokens;
  for (const std::string_view mark : kBlankMarks) {
    if (const auto id = tokenizer.id_of(mark)) {
      tokens.blanks.push_back(*id);
    }
  }
  TESSERA_CHECK(
      !tokens.blanks.empty(),
      "the tokenizer has none of the tokens [MASK], [sMASK] and [gMASK]; use the tokenizer of the model, with its added_tokens.json");
  tokens.start = needed(tokenizer, {"<|startofpiece|>", "<sop>", "sop"});
  tokens.end = needed(tokenizer, {"<|endofpiece|>", "<eop>", "eop"});
  tokens.text_start = first_known(tokenizer, {"[CLS]"}).value_or(-1);
  tokens.text_end =
      first_known(tokenizer, {"<|endoftext|>", "[SEP]"}).value_or(-1);
  return tokens;
}

BlankedText blanked_text(
    const text::Tokenizer& tokenizer,
    const BlankTokens& tokens,
    std::string_view text) {
  BlankedText blanked;
  blanked.context = tokenizer.ids(text);
  if (tokens.text_start >= 0) {
    blanked.context.insert(blanked.context.begin(), tokens.text_start);
  }
  if (tokens.text_end >= 0) {
    blanked.context.push_back(tokens.text_end);
  }
  for (size_t i = 0; i < blanked.context.size(); ++i) {
    if (std::find(
            tokens.blanks.begin(), tokens.blanks.end(), blanked.context[i]) !=
        tokens.blanks.end()) {
      blanked.blanks.push_back(static_cast<int64_t>(i));
    }
  }
  TESSERA_CHECK(
      !blanked.blanks.empty(),
      "the text has no blank; write [MASK] (a few words), [sMASK] (sentences) or, at the end, [gMASK] where the model shall write, as far as its tokenizer has them");
  return blanked;
}

ModelInput blank_inputs(
    const std::vector<BlankedText>& texts,
    int64_t start,
    at::Device device) {
  std::vector<std::vector<int64_t>> rows;
  for (const BlankedText& text : texts) {
    std::vector<int64_t> row = text.context;
    for (const auto& filled : text.filled) {
      row.push_back(start);
      row.insert(row.end(), filled.begin(), filled.end());
    }
    row.push_back(start);
    rows.push_back(std::move(row));
  }
  ModelInput batch = prompt_batch(rows, start, device);
  const int64_t length = batch.input_ids.size(1);
  const auto count = static_cast<int64_t>(texts.size());
  at::Tensor positions = torch::zeros({count, 2, length}, torch::kLong);
  at::Tensor sep = torch::zeros({count}, torch::kLong);
  for (size_t row = 0; row < texts.size(); ++row) {
    const auto row_length = static_cast<int64_t>(rows[row].size());
    const auto at = static_cast<int64_t>(row);
    for (const bool within : {false, true}) {
      positions[at][within ? 1 : 0]
          .narrow(0, length - row_length, row_length)
          .copy_(torch::tensor(positions_of(texts[row], within), torch::kLong));
    }
    sep[at] =
        length - row_length + static_cast<int64_t>(texts[row].context.size());
  }
  batch.position_ids = positions.to(device);
  batch.others["sep"] = sep.to(device);
  return batch;
}

std::string with_blanks_filled(
    std::string_view text,
    const std::vector<std::string>& filled) {
  std::string result;
  for (const std::string& one : filled) {
    size_t at = std::string_view::npos;
    std::string_view found;
    for (const std::string_view mark : kBlankMarks) {
      const size_t position = text.find(mark);
      if (position < at) {
        at = position;
        found = mark;
      }
    }
    if (at == std::string_view::npos) {
      break;
    }
    result += text.substr(0, at);
    text.remove_prefix(at + found.size());
    std::string_view fragment = one;
    if (!fragment.empty() && is_space(fragment.front()) &&
        (result.empty() || is_space(result.back()))) {
      fragment.remove_prefix(1);
    }
    if (!fragment.empty() && is_space(fragment.back()) && !text.empty() &&
        is_space(text.front())) {
      fragment.remove_suffix(1);
    }
    result += fragment;
  }
  return result.append(text);
}

} // namespace tessera::zoo
