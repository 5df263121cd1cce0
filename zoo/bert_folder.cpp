// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/bert_folder.h"

#include "tessera/engine/checkpoint/save_weights.h"
#include "tessera/runtime/core/log.h"
#include "tessera/sharding/lazy.h"
#include "tessera/sharding/load_weights.h"
#include "tessera/zoo/hf_folder_writer.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <string_view>

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModelPrefix = "bert.";
constexpr std::string_view kClassifierPrefix = "classifier.";
constexpr std::string_view kPretrainingPrefix = "cls.";

void replace_suffix(
    std::string& name,
    std::string_view suffix,
    std::string_view by) {
  if (name.ends_with(suffix)) {
    name.replace(name.size() - suffix.size(), suffix.size(), by);
  }
}

// The name inside BertForSequenceClassification, "" for what it has no use for.
std::string canonical_name(std::string_view name) {
  // A buffer that old versions saved: 0, 1, 2 ...
  if (name.ends_with("embeddings.position_ids") ||
      name.starts_with(kPretrainingPrefix)) {
    return "";
  }
  std::string result(name);
  replace_suffix(result, "LayerNorm.gamma", "LayerNorm.weight");
  replace_suffix(result, "LayerNorm.beta", "LayerNorm.bias");
  if (!name.starts_with(kModelPrefix) && !name.starts_with(kClassifierPrefix)) {
    result.insert(0, kModelPrefix);
  }
  return result;
}

// The name inside BertModel.
std::string encoder_name(std::string_view name) {
  const std::string result = canonical_name(name);
  return result.starts_with(kModelPrefix) ? result.substr(kModelPrefix.size())
                                          : "";
}

void log_list(
    const fs::path& folder,
    const char* what,
    const std::vector<std::string>& names) {
  if (names.empty() || !is_log_rank_zero()) {
    return;
  }
  std::string list;
  for (const std::string& name : names) {
    list += " " + name;
  }
  log_info(folder.string(), ": ", what, ":", list);
}

} // namespace

BertModel load_bert(const fs::path& folder) {
  const BertConfig config = BertConfig::from_folder(folder);
  BertModel model = lazy([&] { return BertModel(config); });
  const LoadWeightsReport report =
      load_weights(*model, folder, {.rename = encoder_name});
  materialize(*model);
  log_list(folder, "not needed, left out", report.left_out);
  return model;
}

BertForSequenceClassification lazy_bert_for_sequence_classification(
    const fs::path& folder,
    const std::vector<std::string>& labels) {
  BertConfig config = BertConfig::from_folder(folder);
  if (!labels.empty()) {
    config.labels = labels;
  }
  BertForSequenceClassification model =
      lazy([&] { return BertForSequenceClassification(config); });
  const LoadWeightsReport report = load_weights(
      *model,
      folder,
      {.rename = canonical_name,
       .may_be_missing = {std::string(kClassifierPrefix)}});
  log_list(folder, "not needed, left out", report.left_out);
  log_list(folder, "not in the checkpoint, fresh", report.missing);
  return model;
}

BertForSequenceClassification load_bert_for_sequence_classification(
    const fs::path& folder,
    const std::vector<std::string>& labels) {
  auto model = lazy_bert_for_sequence_classification(folder, labels);
  materialize(*model);
  return model;
}

void save_bert(
    const BertForSequenceClassification& model,
    const fs::path& folder,
    const fs::path& tokenizer_folder) {
  HfFolderWriter writer(folder, model->config().to_json(), tokenizer_folder);
  save_weights(*model, writer.weights_path());
  writer.commit();
}

void save_bert(
    const World& world,
    Engine& engine,
    const BertForSequenceClassification& model,
    const fs::path& folder,
    const fs::path& tokenizer_folder) {
  std::optional<HfFolderWriter> writer;
  if (world.rank() == 0) {
    writer.emplace(folder, model->config().to_json(), tokenizer_folder);
  }
  // The other ranks write nothing.
  engine.save_weights(
      writer ? writer->weights_path() : std::filesystem::path());
  if (writer) {
    writer->commit();
  }
}

} // namespace tessera
