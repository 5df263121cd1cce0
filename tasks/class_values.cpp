// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/class_values.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/tasks/text_classifier.h"
#include "tessera/tasks/trained_model.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>

namespace tessera::tasks {

ClassLabels class_labels_of(const TrainedModel& trained) {
  ClassLabels labels;
  labels.kind = trained.head == nullptr ? zoo::HeadLabels::kOther
                                        : trained.head->labels();
  TESSERA_CHECK(
      predicts_for_examples(labels.kind),
      "'{}' has no trained classifier: architectures in its config.json is {}; give the run folder of `tessera train`, or the folder of a model such as BertForSequenceClassification",
      trained.folder.string(),
      runtime::show_json(trained.model->config().at("architectures")));
  if (labels.kind != zoo::HeadLabels::kNumbers) {
    labels.names = classes_of(*trained.model);
  }
  return labels;
}

std::vector<std::vector<double>> class_values(
    const at::Tensor& logits,
    zoo::HeadLabels labels) {
  const at::Tensor raw = logits.to(at::kCPU, at::kDouble);
  const at::Tensor all =
      (labels == zoo::HeadLabels::kNumbers   ? raw
       : labels == zoo::HeadLabels::kClasses ? raw.sigmoid()
                                             : raw.softmax(-1))
          .contiguous();
  TESSERA_CHECK(
      all.isfinite().all().item<bool>(),
      "the model predicts what is not a finite number: its weights are not finite, or too large for its dtype; export it from an earlier checkpoint, or train it again with a lower learning rate");
  std::vector<std::vector<double>> values;
  const int64_t each = all.size(-1);
  for (int64_t row = 0; row < all.size(0); ++row) {
    const auto* begin = all.const_data_ptr<double>() + row * each;
    values.emplace_back(begin, begin + each);
  }
  return values;
}

} // namespace tessera::tasks
