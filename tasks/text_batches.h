// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextBatches` makes batches of labeled texts, each padded to its longest row.

#include "tessera/tasks/row_batches.h"
#include "tessera/tasks/text_classification_data.h"
#include "tessera/tasks/text_metrics.h"
#include "tessera/text/tokenizer/tokenizer.h"

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>

namespace tessera::tasks {

/// How tokenized texts become the inputs of a model.
struct TextInputs {
  int64_t padding_token = 0;
  /// Whether the model distinguishes the texts of a pair by token_type_ids.
  bool has_token_types = false;
  /// The length is rounded up to a multiple of this.
  int64_t multiple_of = 1;
  c10::Device device = c10::kCPU;
};

/// The token that a model's inputs are padded with: config.json's pad_token_id,
/// else the tokenizer's.
std::optional<int64_t> padding_token(
    const nlohmann::json& config,
    const text::Tokenizer& tokenizer);

/// The inputs that a model takes. @param folder of the tokenizer, for messages.
/// @throws tessera::Error if nothing says which token is padding.
TextInputs text_inputs(
    const zoo::Model& model,
    const zoo::Head& head,
    const text::Tokenizer& tokenizer,
    const std::filesystem::path& folder);

/// @param folder of the tokenizer.
/// @param place of the text, "FILE:LINE: ", for messages; may be empty.
/// @throws tessera::Error on a token that the model does not have.
void check_token_ids(
    const std::vector<int64_t>& ids,
    const text::Tokenizer& tokenizer,
    int64_t vocab,
    const std::filesystem::path& folder,
    const std::string& place = "");

/// Rows of tokens, padded on the right to the longest one.
/// @return [rows, length] int64, on the device of `inputs`.
at::Tensor padded_rows(
    const std::vector<std::vector<int64_t>>& rows,
    int64_t padding,
    const TextInputs& inputs);

/// A batch of texts, padded on the right to the longest one.
zoo::ModelInput padded_input(
    const std::vector<text::Encoding>& texts,
    const TextInputs& inputs);

/// Texts with a class each, with any number of classes, or with numbers.
class TextBatches : public RowBatches<LabelledEncoding> {
 public:
  /// @param files whose texts are also scored by themselves, if there are
  ///     several; in the order of LabelledEncoding::file.
  /// @param metrics of text_metrics_for(), the most important one first.
  TextBatches(
      std::vector<LabelledEncoding> examples,
      const std::vector<std::filesystem::path>& files,
      zoo::HeadLabels labels,
      size_t classes,
      std::vector<TextMetric> metrics,
      const TextInputs& inputs);

  std::string text() const override;
  TaskScore report(const zoo::Score& score) const override;

 private:
  zoo::ModelInput rows(const std::vector<size_t>& numbers) const override;
  /// @param file the only one that counts; nullopt: all.
  TextPredictions predictions(
      const at::Tensor& outputs,
      std::optional<size_t> file) const;

  std::vector<std::string> files_; ///< their names in reports
  zoo::HeadLabels labels_;
  size_t classes_;
  std::vector<TextMetric> metrics_;
  TextInputs inputs_;
};

} // namespace tessera::tasks
