// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/trained_head.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/models/classification.h"
#include "tessera/zoo/models/config_fields.h"
#include "tessera/zoo/models/decoder.h"
#include "tessera/zoo/models/encoder.h"
#include "tessera/zoo/models/encoder_decoder.h"
#include "tessera/zoo/models/image_fields.h"
#include "tessera/zoo/models/masked_autoencoder.h"
#include "tessera/zoo/models/moco_model.h"
#include "tessera/zoo/models/swin_model.h"

#include <array>
#include <string_view>

namespace tessera::zoo {

namespace {

struct NamedHead {
  std::string_view suffix; ///< of transformers' class
  HeadKind kind;
};

constexpr std::array kHeads = {
    NamedHead{"ForMaskedLM", HeadKind::kMaskedTokens},
    NamedHead{"ForSequenceClassification", HeadKind::kClasses},
    NamedHead{"ForImageClassification", HeadKind::kClasses},
    NamedHead{"ForNextSentencePrediction", HeadKind::kClasses},
    NamedHead{"ForTokenClassification", HeadKind::kTokenClasses},
    NamedHead{"ForMultipleChoice", HeadKind::kChoices},
    NamedHead{"ForQuestionAnswering", HeadKind::kAnswers},
    NamedHead{"ForMaskedImageModeling", HeadKind::kMaskedPixels},
    NamedHead{"ForCausalLM", HeadKind::kNextTokens},
    NamedHead{"LMHeadModel", HeadKind::kNextTokens},
    NamedHead{"ForLM", HeadKind::kNextTokens},
};

/// The kinds that the class name alone does not determine; else nullopt.
std::optional<HeadKind> kind_of_model(
    const zoo::Model& model,
    std::string_view name) {
  if (const auto* decoder = dynamic_cast<const zoo::Decoder*>(&model);
      decoder != nullptr && decoder->head() == zoo::DecoderHead::kCausalLm) {
    return decoder->decoder_config().labels_in_place ? HeadKind::kTokensInPlace
                                                     : HeadKind::kNextTokens;
  }
  if (dynamic_cast<const zoo::EncoderDecoder*>(&model) != nullptr &&
      (name.ends_with("ForConditionalGeneration") || name.ends_with("ForLM"))) {
    return HeadKind::kSecondText;
  }
  if (!name.ends_with("ForPreTraining")) {
    return std::nullopt;
  }
  if (dynamic_cast<const zoo::Encoder*>(&model) != nullptr) {
    return HeadKind::kPreTraining;
  }
  if (dynamic_cast<const zoo::MaskedAutoencoder*>(&model) != nullptr) {
    return HeadKind::kAutoencoder;
  }
  if (dynamic_cast<const zoo::MocoModel*>(&model) != nullptr) {
    return HeadKind::kTwoViews;
  }
  return std::nullopt;
}

HeadKind kind_of(const zoo::Model& model, const std::string& name) {
  if (const auto kind = kind_of_model(model, name)) {
    return *kind;
  }
  for (const NamedHead& head : kHeads) {
    if (name.ends_with(head.suffix)) {
      return head.kind;
    }
  }
  TESSERA_CHECK(
      !name.ends_with("Model") && name != "CPM1" && name != "CPM2",
      "a {} has no head, and so no loss; name a class that has one in model.architecture, such as one for MaskedLM or SequenceClassification",
      name);
  return HeadKind::kOther;
}

std::optional<zoo::PatchEmbeddingOptions> images_of(
    const zoo::Model& model,
    const zoo::ConfigFields& fields) {
  if (dynamic_cast<const zoo::SwinModel*>(&model) != nullptr) {
    auto options = zoo::patch_fields(fields, 224, 4);
    options.pads = true;
    return options;
  }
  if (dynamic_cast<const zoo::ImageEncoder*>(&model) != nullptr ||
      dynamic_cast<const zoo::MaskedAutoencoder*>(&model) != nullptr ||
      dynamic_cast<const zoo::MocoModel*>(&model) != nullptr) {
    return zoo::patch_fields(fields, 224, 16);
  }
  return std::nullopt;
}

void read_classes(const zoo::ConfigFields& fields, TrainedHead& head) {
  const auto options = zoo::ClassifierOptions::from_config(fields);
  const std::string problem = options.problem_type.value_or("");
  head.has_several_labels = problem == "multi_label_classification";
  const bool is_number =
      problem == "regression" || (problem.empty() && options.labels == 1 &&
                                  head.kind == HeadKind::kClasses);
  head.classes = is_number ? 0 : options.labels;
}

} // namespace

TrainedHead trained_head(const zoo::Model& model) {
  TrainedHead head;
  head.architecture =
      model.config().at("architectures").at(0).get<std::string>();
  head.kind = kind_of(model, head.architecture);
  const zoo::ConfigFields fields(model.config(), "config.json");
  head.images = images_of(model, fields);
  head.vocab =
      fields.get<int64_t>({"padded_vocab_size", "vocab_size"}, int64_t{0});
  if (head.architecture.ends_with("ForNextSentencePrediction")) {
    head.classes = 2;
  } else if (
      head.kind == HeadKind::kClasses || head.kind == HeadKind::kTokenClasses) {
    read_classes(fields, head);
  } else if (
      labels_follow_input(head.kind) || head.kind == HeadKind::kSecondText) {
    head.classes = head.vocab;
  }
  return head;
}

bool labels_follow_input(HeadKind kind) {
  switch (kind) {
    case HeadKind::kNextTokens:
    case HeadKind::kTokensInPlace:
    case HeadKind::kMaskedTokens:
    case HeadKind::kPreTraining:
    case HeadKind::kTokenClasses:
      return true;
    default:
      return false;
  }
}

} // namespace tessera::zoo
