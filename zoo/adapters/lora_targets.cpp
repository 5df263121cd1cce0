// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/adapters/lora_targets.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/name_patterns.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

namespace tessera::zoo {

namespace {

constexpr const char* kAllLinear = "all-linear";

/// Heads of language models, which "all-linear" excludes.
constexpr std::array<const char*, 6> kOutputs = {
    "lm_head",
    "embed_out",
    "output_layer",
    "output_projection",
    "lm_head.decoder",
    "cls.predictions.decoder"};

struct Task {
  const char* architecture_end;
  const char* task_type;
  std::vector<std::string> heads; ///< that are trained and saved
};

const std::vector<Task>& tasks() {
  static const std::vector<Task> all{
      {"ForSequenceClassification", "SEQ_CLS", {"classifier", "score"}},
      {"ForTokenClassification", "TOKEN_CLS", {"classifier", "score"}},
      {"ForQuestionAnswering", "QUESTION_ANS", {"qa_outputs"}},
      {"ForConditionalGeneration", "SEQ_2_SEQ_LM", {}},
      {"ForCausalLM", "CAUSAL_LM", {}},
      {"LMHeadModel", "CAUSAL_LM", {}}};
  return all;
}

// std::regex compiles nested expressions recursively.
constexpr size_t kLongestExpression = 2000;

runtime::NamePattern expression(const std::string& text, const char* option) {
  TESSERA_CHECK(
      text.size() <= kLongestExpression,
      "model.lora.{} is a regular expression of {} characters; at most {} are allowed, list names instead",
      option,
      text.size(),
      kLongestExpression);
  return {std::string("model.lora.") + option, text};
}

/// Whether `name` is `end` or ends with "." and `end`.
bool ends_with_module(std::string_view name, std::string_view end) {
  return name == end || (name.size() > end.size() && name.ends_with(end) &&
                         name[name.size() - end.size() - 1] == '.');
}

/// The number of groups in an expression that capture.
size_t groups_in(const std::string& expression) {
  size_t groups = 0;
  bool in_class = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\') {
      ++i;
    } else if (c == '[' || c == ']') {
      in_class = c == '[';
    } else if (c == '(' && !in_class) {
      groups += expression.compare(i, 2, "(?") == 0 ? 0 : 1;
    }
  }
  return groups;
}

/// An expression for names of modules, and what replaces a name to leave the
/// number of its layer. As in PEFT, the first number counts.
std::pair<std::string, std::string> number_rule(const std::string& word) {
  if (word.empty()) {
    return {R"(.*?\.[^.]*\.(\d+)\..*)", "$1"};
  }
  return {
      R"((?:(?:^|.*?\.))" + word + R"(\.(\d+)\.).*)",
      "$" + std::to_string(groups_in(word) + 1)};
}

bool is_all_linear(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return text == kAllLinear;
}

} // namespace

LoraTargets::LoraTargets(
    const LoraConfig& config,
    const std::string& architecture)
    : config_(config),
      all_linear_(zoo::is_all_linear(config.target_modules.pattern)),
      is_excluded_(matcher(config.exclude_modules, "exclude_modules")) {
  check(config);
  if (!config_.task_type) {
    config_.task_type = "";
    for (const Task& task : tasks()) {
      if (architecture.ends_with(task.architecture_end)) {
        config_.task_type = task.task_type;
      }
    }
  }
  for (const Task& task : tasks()) {
    if (*config_.task_type != task.task_type) {
      continue;
    }
    for (const std::string& head : task.heads) {
      auto& saved = config_.modules_to_save;
      if (std::find(saved.begin(), saved.end(), head) == saved.end()) {
        saved.push_back(head);
      }
    }
  }
  if (!all_linear_) {
    is_target_ = matcher(config.target_modules, "target_modules");
  }
  std::vector<std::string> words = config.layers_pattern;
  if (words.empty()) {
    words.emplace_back();
  }
  for (const std::string& word : words) {
    const auto [pattern, number] = number_rule(word);
    layer_numbers_.emplace_back(
        [pattern = expression(pattern, "layers_pattern"),
         number = number](const std::string& name) {
          return pattern.replaced(name, number);
        });
  }
  for (const auto& [end, r] : config.rank_pattern) {
    ranks_.emplace_back(
        matcher({{}, "(.*\\.)?(" + end + ")"}, "rank_pattern"), r);
  }
  for (const auto& [end, alpha] : config.alpha_pattern) {
    alphas_.emplace_back(
        matcher({{}, "(.*\\.)?(" + end + ")"}, "alpha_pattern"), alpha);
  }
}

LoraTargets::Matches LoraTargets::matcher(
    const ModuleNames& modules,
    const char* option) {
  if (!modules.pattern.empty()) {
    return [pattern = expression(modules.pattern, option)](
               const std::string& name) { return pattern.matches(name); };
  }
  return [names = modules.names](const std::string& name) {
    return std::any_of(names.begin(), names.end(), [&](const auto& end) {
      return ends_with_module(name, end);
    });
  };
}

bool LoraTargets::is_saved(std::string_view module) const {
  for (const std::string& end : config_.modules_to_save) {
    // The module itself and all modules that contain it.
    for (std::string_view part = module; !part.empty();
         part = part.substr(0, part.find_last_of('.'))) {
      if (part.ends_with(end)) { // as in PEFT: also without a preceding dot
        return true;
      }
      if (part.find('.') == std::string_view::npos) {
        break;
      }
    }
  }
  return false;
}

bool LoraTargets::is_in_layers(const std::string& module) const {
  const auto& asked = config_.target_modules.names;
  if (config_.layers_to_transform.empty() ||
      std::find(asked.begin(), asked.end(), module) != asked.end()) {
    return true;
  }
  for (const NumberOf& number_of : layer_numbers_) {
    if (const auto number = number_of(module)) {
      return std::any_of(
          config_.layers_to_transform.begin(),
          config_.layers_to_transform.end(),
          [&](int64_t layer) { return std::to_string(layer) == *number; });
    }
  }
  return false;
}

bool LoraTargets::has(const std::string& module) const {
  if (is_excluded_(module) || is_saved(module)) {
    return false;
  }
  if (!all_linear_) {
    return is_target_(module) && is_in_layers(module);
  }
  return std::none_of(kOutputs.begin(), kOutputs.end(), [&](const char* end) {
    return ends_with_module(module, end);
  });
}

std::string LoraTargets::named_output() const {
  const ModuleNames& asked = config_.target_modules;
  for (const char* output : kOutputs) {
    if (all_linear_ || !has(output)) {
      continue;
    }
    const auto name = std::find_if(
        asked.names.begin(), asked.names.end(), [&](const auto& end) {
          return ends_with_module(output, end);
        });
    return asked.pattern.empty() ? *name : asked.pattern;
  }
  return {};
}

int64_t LoraTargets::rank_of(const std::string& module) const {
  for (const auto& [matches, r] : ranks_) {
    if (matches(module)) {
      return r;
    }
  }
  return config_.r;
}

double LoraTargets::scaling_of(const std::string& module) const {
  double alpha = config_.alpha;
  for (const auto& [matches, its_alpha] : alphas_) {
    if (matches(module)) {
      alpha = its_alpha;
      break;
    }
  }
  const auto r = static_cast<double>(rank_of(module));
  return alpha / (config_.use_rslora ? std::sqrt(r) : r);
}

} // namespace tessera::zoo
