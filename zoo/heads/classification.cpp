// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/heads/classification.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/text/metrics/words.h"
#include "tessera/zoo/layers/losses.h"

#include <torch/types.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

namespace tessera::zoo {

namespace {

constexpr const char* kRegression = "regression";
constexpr const char* kSingleLabel = "single_label_classification";
constexpr const char* kMultiLabel = "multi_label_classification";

/// Where positions of answers are text: [B, length]; undefined: everywhere.
at::Tensor text_of_answers(const ModelInput& input, int64_t length) {
  // Encoder-decoders read the text itself in their second half, too.
  const at::Tensor& mask = input.decoder_attention_mask.defined() ||
                                   input.decoder_input_ids.defined()
                               ? input.decoder_attention_mask
                               : input.attention_mask;
  return mask.defined() ? mask.slice(1, mask.size(1) - length).ne(0) : mask;
}

constexpr const char* kDefaultClass = "LABEL_";

/// Whether the names are `prefix` and their ids.
bool are_numbered(
    const std::vector<std::string>& names,
    const std::string& prefix) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] != prefix + std::to_string(i)) {
      return false;
    }
  }
  return true;
}

/// The wanted names in the order of the trained ones that have the same key;
/// empty if they are not the same ones.
template <typename Key>
std::vector<std::string> reordered(
    const std::vector<std::string>& trained,
    const std::vector<std::string>& wanted,
    const Key& key) {
  std::map<std::string, std::string> by_key;
  for (const std::string& name : wanted) {
    by_key.emplace(key(name), name);
  }
  std::vector<std::string> names;
  for (const std::string& name : trained) {
    const auto found = by_key.find(key(name));
    if (found == by_key.end()) {
      return {};
    }
    names.push_back(found->second);
    by_key.erase(found);
  }
  return by_key.empty() && names.size() == wanted.size()
             ? names
             : std::vector<std::string>();
}

} // namespace

std::vector<std::string> class_names_in(const nlohmann::json& config) {
  std::vector<std::string> names;
  const auto given = config.find("id2label");
  if (given != config.end() && given->is_object() && !given->empty()) {
    for (size_t i = 0; i < given->size(); ++i) {
      const auto name = given->find(std::to_string(i));
      if (name == given->end() || !name->is_string()) {
        return {};
      }
      names.push_back(name->get<std::string>());
    }
    return names;
  }
  const auto count = config.find("num_labels");
  const int64_t labels = count != config.end() && count->is_number_integer()
                             ? count->get<int64_t>()
                             : 2;
  for (int64_t i = 0; i < std::min<int64_t>(labels, 1 << 20); ++i) {
    names.push_back(kDefaultClass + std::to_string(i));
  }
  return names;
}

nlohmann::json class_name_fields(const std::vector<std::string>& names) {
  nlohmann::json of_numbers = nlohmann::json::object();
  nlohmann::json of_names = nlohmann::json::object();
  for (size_t i = 0; i < names.size(); ++i) {
    of_numbers[std::to_string(i)] = names[i];
    of_names[names[i]] = i;
  }
  return {{"id2label", of_numbers}, {"label2id", of_names}};
}

HeadClasses classes_for_head(
    const std::vector<std::string>& trained,
    const std::vector<std::string>& wanted,
    ClassOrder order) {
  if (trained.size() != wanted.size()) {
    return {wanted, false};
  }
  if (trained == wanted) {
    return {wanted, true};
  }
  if (are_numbered(wanted, "") || are_numbered(wanted, kDefaultClass)) {
    return {
        order == ClassOrder::kAsGiven || are_numbered(trained, kDefaultClass)
            ? wanted
            : trained,
        true};
  }
  if (order == ClassOrder::kAsGiven) {
    return {wanted, are_numbered(trained, kDefaultClass)};
  }
  auto names =
      reordered(trained, wanted, [](const std::string& name) { return name; });
  if (names.empty()) {
    names = reordered(trained, wanted, [](const std::string& name) {
      return text::lower_case(name);
    });
  }
  return names.empty() ? HeadClasses{wanted, false}
                       : HeadClasses{std::move(names), true};
}

std::vector<std::string> class_names_in_data(
    const std::vector<std::string>& classes,
    const std::vector<std::string>& used) {
  const auto has_any = [&used](const std::vector<std::string>& names) {
    return std::any_of(used.begin(), used.end(), [&](const auto& name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    });
  };
  if (has_any(classes)) {
    return classes;
  }
  for (const char* prefix : {"", kDefaultClass}) {
    std::vector<std::string> numbered;
    for (size_t i = 0; i < classes.size(); ++i) {
      numbered.push_back(prefix + std::to_string(i));
    }
    if (has_any(numbered)) {
      return numbered;
    }
  }
  return classes;
}

std::string class_ids_text(
    const std::vector<std::string>& classes,
    const std::vector<std::string>& names_in_data) {
  if (names_in_data == classes) {
    return "";
  }
  constexpr std::ptrdiff_t kShownClasses = 8;
  const auto shown = [](const std::vector<std::string>& names,
                        std::ptrdiff_t most) {
    return std::vector<std::string>(
        names.begin(), names.begin() + std::min(std::ssize(names), most));
  };
  return formatted(
      "labels {}{} are taken for the ids of the classes {}{}",
      runtime::join_names(shown(names_in_data, 2)),
      names_in_data.size() > 2 ? ", ..." : "",
      runtime::show_json(shown(classes, kShownClasses)),
      std::ssize(classes) > kShownClasses ? " and more" : "");
}

ClassifierOptions ClassifierOptions::from_config(const ConfigFields& fields) {
  ClassifierOptions options{
      fields.labels(), fields.find<std::string>({"problem_type"})};
  TESSERA_CHECK(
      !options.problem_type || *options.problem_type == kRegression ||
          *options.problem_type == kSingleLabel ||
          *options.problem_type == kMultiLabel,
      "{}: problem_type is '{}'; it must be {}, {} or {}",
      fields.origin(),
      options.problem_type.value_or(""),
      kRegression,
      kSingleLabel,
      kMultiLabel);
  return options;
}

at::Tensor classifier_loss(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const ClassifierOptions& options) {
  const std::string problem = options.problem_type.value_or(
      options.labels == 1                        ? kRegression
      : at::isFloatingType(labels.scalar_type()) ? kMultiLabel
                                                 : kSingleLabel);
  if (problem == kRegression) {
    return at::mse_loss(
        logits.squeeze(-1),
        labels.to(logits.scalar_type()).view_as(logits.squeeze(-1)));
  }
  if (problem == kMultiLabel) {
    return at::binary_cross_entropy_with_logits(logits, labels);
  }
  if (at::isFloatingType(labels.scalar_type())) {
    return at::cross_entropy_loss(logits.to(at::kFloat), labels.to(at::kFloat));
  }
  return cross_entropy(logits, labels.flatten());
}

void add_classes(
    const ModelInput& input,
    at::Tensor logits,
    const ClassifierOptions& options,
    ModelOutput& output) {
  output.logits = std::move(logits);
  if (input.labels.defined()) {
    output.loss = classifier_loss(output.logits, input.labels, options);
  }
}

double AnswerPlaces::count() const {
  return targets.ne(-100).sum().item<double>();
}

at::Tensor AnswerPlaces::loss() const {
  return cross_entropy(logits, targets);
}

AnswerPlaces answer_places(
    const ModelInput& input,
    const at::Tensor& logits,
    const at::Tensor& positions) {
  const int64_t length = logits.size(1);
  const at::Tensor targets = positions.flatten().to(at::kLong);
  at::Tensor counts = targets.ge(0).logical_and(targets.lt(length));
  const at::Tensor text = text_of_answers(input, length);
  if (!text.defined()) {
    return {logits, targets.masked_fill(counts.logical_not(), -100)};
  }
  counts = counts.logical_and(
      text.gather(1, targets.clamp(0, length - 1).unsqueeze(1)).squeeze(1));
  // A row without any text keeps its numbers: a softmax of nothing is NaN, and
  // so are its gradients.
  const at::Tensor hidden =
      text.logical_not().logical_and(text.any(1, /*keepdim=*/true));
  return {
      logits.masked_fill(hidden, -std::numeric_limits<double>::infinity()),
      targets.masked_fill(counts.logical_not(), -100)};
}

void add_answers(
    const ModelInput& input,
    const at::Tensor& logits,
    ModelOutput& output) {
  const at::Tensor start = logits.select(-1, 0);
  const at::Tensor end = logits.select(-1, 1);
  output.others["start_logits"] = start;
  output.others["end_logits"] = end;
  const auto from = input.others.find("start_positions");
  const auto to = input.others.find("end_positions");
  if (from != input.others.end() && to != input.others.end()) {
    const at::Tensor of_ends = answer_places(input, end, to->second).loss() / 2;
    output.others[kSecondLoss] = of_ends;
    output.loss =
        answer_places(input, start, from->second).loss() / 2 + of_ends;
  }
}

at::Tensor last_token_places(
    const at::Tensor& input_ids,
    const std::optional<int64_t>& padding_id) {
  const int64_t length = input_ids.size(1);
  if (!padding_id) {
    TESSERA_CHECK(
        input_ids.size(0) == 1,
        "classifying {} rows needs a padding token: set pad_token_id in config.json",
        input_ids.size(0));
    return torch::full({1}, length - 1, input_ids.options().dtype(at::kLong));
  }
  const at::Tensor positions =
      torch::arange(length, input_ids.options().dtype(at::kLong));
  return (input_ids.ne(*padding_id) * positions).argmax(-1);
}

} // namespace tessera::zoo
