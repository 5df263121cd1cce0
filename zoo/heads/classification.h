// SPDX-License-Identifier: Apache-2.0
#pragma once
// Losses and outputs that the classifiers of all families share.

#include "tessera/zoo/formats/config_fields.h"
#include "tessera/zoo/inputs/model_input.h"

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

/// The number and meaning of a classifier's outputs.
struct ClassifierOptions {
  int64_t labels = 2;
  /// "regression", "single_label_classification" or
  /// "multi_label_classification". Unset: regression for one label; otherwise
  /// inferred from the labels' type, multi-label for floating point.
  std::optional<std::string> problem_type;

  /// @throws Error on another problem_type.
  static ClassifierOptions from_config(const ConfigFields& fields);
};

/// What decides which of a head's outputs a class is.
enum class ClassOrder {
  kAsGiven, ///< the order of the names that are asked for
  kOfCheckpoint, ///< that of config.json, if its names are the same ones
};

/// The classes of a model, and whether a trained head predicts them.
struct HeadClasses {
  std::vector<std::string> names; ///< in the order of the head's outputs
  bool are_trained = true; ///< false: the head must be newly initialized
};

/// The names of a config.json's classes in the order of their ids: those of
/// `id2label`, else transformers' "LABEL_0", ...
std::vector<std::string> class_names_in(const nlohmann::json& config);

/// The entries `id2label` and `label2id` of config.json.
nlohmann::json class_name_fields(const std::vector<std::string>& names);

/// Matches the classes that are asked for with those of a trained head: by
/// their names, without regard to case. Names that are ids ("0", "1", ...) or
/// transformers' defaults stand for the classes of these ids, which keep their
/// trained names in the order of the checkpoint.
/// @param trained, wanted without duplicates.
HeadClasses classes_for_head(
    const std::vector<std::string>& trained,
    const std::vector<std::string>& wanted,
    ClassOrder order);

/// What data call the classes of a model: their names, or, if the data have
/// none of these, their ids ("0", "1", ...) or transformers' defaults, if they
/// have any of them.
/// @param used the names in the data.
std::vector<std::string> class_names_in_data(
    const std::vector<std::string>& classes,
    const std::vector<std::string>& used);

/// What to tell users of class_names_in_data() that are not the names of the
/// classes: "labels 0, 1, ... are taken for the ids of the classes [...]";
/// empty if they are.
std::string class_ids_text(
    const std::vector<std::string>& classes,
    const std::vector<std::string>& names_in_data);

/// The loss of a sequence classifier.
/// @param logits [B, labels]
/// @param labels [B], or [B, labels] for several labels per row; with the type
///     "single_label_classification" floats are the distribution of a row.
at::Tensor classifier_loss(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const ClassifierOptions& options);

/// Adds class logits, and with labels the classifier_loss().
void add_classes(
    const ModelInput& input,
    at::Tensor logits,
    const ClassifierOptions& options,
    ModelOutput& output);

/// The starts or the ends of answers, one in each row.
struct AnswerPlaces {
  /// [B, S], -inf where the row has padding, which is no place for an answer:
  /// unlike in transformers, a row says the same whatever it is padded to.
  at::Tensor logits;
  at::Tensor targets; ///< int64 [B], -100: not in the text, ignored

  /// The number of targets that count.
  double count() const;
  /// Mean cross-entropy over the targets that count; 0 if there are none.
  at::Tensor loss() const;
};

/// @param logits [B, S], as the model computes them.
/// @param positions [B] or [B, 1]; outside of the text or in padding: ignored.
AnswerPlaces answer_places(
    const ModelInput& input,
    const at::Tensor& logits,
    const at::Tensor& positions);

/// Adds the results of question answering: `start_logits` and `end_logits` [B,
/// S] from logits [B, S, 2], and, if the input has `start_positions` and
/// `end_positions` [B], a loss: half of the losses of their answer_places().
void add_answers(
    const ModelInput& input,
    const at::Tensor& logits,
    ModelOutput& output);

/// The position of each row's last token that is not padding: int64 [B].
/// Without a padding token it is the last position, and only one row is
/// allowed.
at::Tensor last_token_places(
    const at::Tensor& input_ids,
    const std::optional<int64_t>& padding_id);

} // namespace tessera::zoo
