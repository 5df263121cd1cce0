// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/text_batches.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/round_up.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/memory/to_device.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace tessera::tasks {

namespace {

std::string texts_text(int64_t count) {
  return runtime::count_text(count, "text");
}

/// The classes that an example is given.
std::vector<int64_t> predicted_classes(
    const double* logits,
    size_t classes,
    zoo::HeadLabels labels) {
  if (labels == zoo::HeadLabels::kClass) {
    return {std::max_element(logits, logits + classes) - logits};
  }
  std::vector<int64_t> predicted;
  for (size_t i = 0; i < classes; ++i) {
    if (logits[i] >= 0) { // a probability of 0.5, as `tessera predict` has it
      predicted.push_back(static_cast<int64_t>(i));
    }
  }
  return predicted;
}

} // namespace

std::optional<int64_t> padding_token(
    const nlohmann::json& config,
    const text::Tokenizer& tokenizer) {
  const auto found = config.find("pad_token_id");
  return found != config.end() && found->is_number_integer() &&
                 found->get<int64_t>() >= 0
             ? std::optional(found->get<int64_t>())
             : tokenizer.special_id("pad_token");
}

TextInputs text_inputs(
    const zoo::Model& model,
    const zoo::Head& head,
    const text::Tokenizer& tokenizer,
    const std::filesystem::path& folder) {
  const auto padding = padding_token(model.config(), tokenizer);
  TESSERA_CHECK(
      padding.has_value(),
      "'{}': neither config.json nor the tokenizer's files name a padding token, which texts of different lengths need; set \"pad_token_id\" in config.json, e.g. to the eos_token_id{}",
      folder.string(),
      tokenizer.special_id("eos_token")
          ? formatted(", {}", *tokenizer.special_id("eos_token"))
          : "");
  // With one type, all tokens have it anyway.
  return {.padding_token = *padding, .has_token_types = head.token_types() > 1};
}

void check_token_ids(
    const std::vector<int64_t>& ids,
    const text::Tokenizer& tokenizer,
    int64_t vocab,
    const std::filesystem::path& folder,
    const std::string& place) {
  for (const int64_t id : ids) {
    TESSERA_CHECK(
        id < vocab,
        "{}the tokenizer in '{}' gives '{}' the id {}, but the model has {} tokens; use the tokenizer of the model",
        place,
        folder.string(),
        tokenizer.token(id),
        id,
        vocab);
  }
}

at::Tensor padded_rows(
    const std::vector<std::vector<int64_t>>& rows,
    int64_t padding,
    const TextInputs& inputs) {
  size_t longest = 1;
  for (const auto& row : rows) {
    longest = std::max(longest, row.size());
  }
  const auto length =
      runtime::round_up(static_cast<int64_t>(longest), inputs.multiple_of);
  const at::Tensor all =
      at::full({static_cast<int64_t>(rows.size()), length}, padding, at::kLong);
  auto* begin = all.mutable_data_ptr<int64_t>();
  for (const auto& row : rows) {
    std::copy(row.begin(), row.end(), begin);
    begin += length;
  }
  return runtime::to_device(all, inputs.device);
}

zoo::ModelInput padded_input(
    const std::vector<text::Encoding>& texts,
    const TextInputs& inputs) {
  std::vector<std::vector<int64_t>> ids, types, masks;
  for (const text::Encoding& text : texts) {
    ids.push_back(text.ids());
    masks.emplace_back(text.tokens.size(), 1);
    types.emplace_back();
    for (const text::PlacedToken& token : text.tokens) {
      types.back().push_back(token.type_id);
    }
  }
  zoo::ModelInput batch;
  batch.input_ids = padded_rows(ids, inputs.padding_token, inputs);
  if (inputs.has_token_types) {
    batch.token_type_ids = padded_rows(types, 0, inputs);
  }
  batch.attention_mask = padded_rows(masks, 0, inputs);
  return batch;
}

namespace {

/// The names of files without suffix, and as much more as tells them apart:
/// "dev", "matched/dev", "matched/dev.csv".
std::vector<std::string> short_names(
    const std::vector<std::filesystem::path>& files) {
  std::vector<std::string> names;
  for (const std::filesystem::path& file : files) {
    const auto is_alone = [&](const auto& name_of) {
      return std::count_if(files.begin(), files.end(), [&](const auto& other) {
               return name_of(other) == name_of(file);
             }) == 1;
    };
    const auto stem = [](const std::filesystem::path& each) {
      return each.stem().string();
    };
    const auto name = [](const std::filesystem::path& each) {
      return each.filename().string();
    };
    const auto in_folder = [&stem](const std::filesystem::path& each) {
      return (each.parent_path().filename() / stem(each)).string();
    };
    names.push_back(
        is_alone(stem)        ? stem(file)
        : is_alone(name)      ? name(file)
        : is_alone(in_folder) ? in_folder(file)
                              : file.string());
  }
  return names;
}

} // namespace

TextBatches::TextBatches(
    std::vector<LabelledEncoding> examples,
    const std::vector<std::filesystem::path>& files,
    zoo::HeadLabels labels,
    size_t classes,
    std::vector<TextMetric> metrics,
    const TextInputs& inputs)
    : RowBatches(
          std::move(examples),
          {.outputs_per_example = labels == zoo::HeadLabels::kNumbers
                                      ? 1
                                      : static_cast<int64_t>(classes),
           .has_equal_labels = true}),
      files_(short_names(files)),
      labels_(labels),
      classes_(classes),
      metrics_(std::move(metrics)),
      inputs_(inputs) {
  const bool has_groups = classes_ == 2 && std::none_of(
                                               this->examples().begin(),
                                               this->examples().end(),
                                               [](const LabelledEncoding& one) {
                                                 return one.group.empty();
                                               });
  for (const TextMetric& metric : metrics_) {
    TESSERA_CHECK(
        has_groups || !metric.needs_groups,
        "data.metric is \"{}\", of texts that belong together, as in some of the sets of data.preset; these do not",
        metric.name);
  }
}

std::string TextBatches::text() const {
  return texts_text(static_cast<int64_t>(size())) + " with " +
         (labels_ == zoo::HeadLabels::kNumbers
              ? "numbers"
              : runtime::count_text(static_cast<int64_t>(classes_), "label"));
}

zoo::ModelInput TextBatches::rows(const std::vector<size_t>& numbers) const {
  std::vector<text::Encoding> encodings;
  std::vector<int64_t> classes;
  std::vector<double> values;
  at::Tensor several;
  if (labels_ == zoo::HeadLabels::kClasses) {
    several = at::zeros(
        {static_cast<int64_t>(numbers.size()), static_cast<int64_t>(classes_)},
        at::kFloat);
  }
  for (size_t row = 0; row < numbers.size(); ++row) {
    const LabelledEncoding& example = examples()[numbers[row]];
    encodings.push_back(example.encoding);
    switch (labels_) {
      case zoo::HeadLabels::kNumbers:
        values.push_back(example.number);
        break;
      case zoo::HeadLabels::kClasses:
        for (const int64_t label : example.labels) {
          several[static_cast<int64_t>(row)][label] = 1;
        }
        break;
      default:
        classes.push_back(example.labels.front());
    }
  }
  zoo::ModelInput batch = padded_input(encodings, inputs_);
  batch.labels = runtime::to_device(
      labels_ == zoo::HeadLabels::kNumbers   ? at::tensor(values, at::kFloat)
      : labels_ == zoo::HeadLabels::kClasses ? several
                                             : at::tensor(classes, at::kLong),
      inputs_.device);
  return batch;
}

TextPredictions TextBatches::predictions(
    const at::Tensor& outputs,
    std::optional<size_t> file) const {
  TextPredictions predictions{labels_, text::ClassCounts(classes_), {}, {}, {}};
  const auto* logits = outputs.const_data_ptr<double>();
  for (const LabelledEncoding& example : examples()) {
    if (file && example.file != *file) {
    } else if (labels_ == zoo::HeadLabels::kNumbers) {
      predictions.predicted.push_back(*logits);
      predictions.wanted.push_back(example.number);
    } else {
      predictions.counts.add(
          example.labels, predicted_classes(logits, classes_, labels_));
      if (!example.group.empty() && classes_ == 2) {
        predictions.groups[{example.file, example.group}].push_back(
            {logits[1] - logits[0],
             example.labels.front() == 1,
             example.candidate,
             example.answers});
      }
    }
    logits += outputs_per_example();
  }
  return predictions;
}

TaskScore TextBatches::report(const zoo::Score& score) const {
  TaskScore result;
  const auto add = [&](const TextPredictions& found, const std::string& file) {
    std::string line;
    for (const TextMetric& metric : metrics_) {
      const double value = metric.value(found);
      result.values[formatted(
          "heldout_{}{}", metric.name, file.empty() ? "" : "_" + file)] = value;
      line +=
          (line.empty() ? "" : ", ") +
          (metric.is_share ? formatted("{} {:.1f} %", metric.title, 100 * value)
                           : formatted("{} {:.4f}", metric.title, value));
    }
    return line;
  };
  const std::string all = add(predictions(score.outputs, std::nullopt), "");
  const std::string count = texts_text(score.examples);
  if (labels_ == zoo::HeadLabels::kNumbers) {
    result.text = formatted(
        "mean squared error {:.4f} over {}, {}",
        score.squared_error,
        count,
        all);
    result.values["heldout_loss"] = score.squared_error;
    result.values["heldout_examples"] = score.examples;
  } else {
    result.text = formatted("{} of {}, loss {:.4f}", all, count, score.loss);
    result.values["heldout_loss"] = score.loss;
    result.values["heldout_examples"] = score.examples;
    if (labels_ == zoo::HeadLabels::kClass) {
      const double majority = majority_share(examples());
      result.text += formatted(
          " (always guessing the most frequent label: {:.1f} %)",
          100 * majority);
      result.values["majority_baseline"] = majority;
    }
  }
  for (size_t file = 0; files_.size() > 1 && file < files_.size(); ++file) {
    const std::string& name = files_[file];
    result.text += formatted(
        "; {}: {}", name, add(predictions(score.outputs, file), name));
  }
  return result;
}

} // namespace tessera::tasks
