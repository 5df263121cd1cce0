// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/question_predictor.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/zoo/heads/head.h"

#include <ATen/ops/cat.h>
#include <torch/types.h>

#include <algorithm>
#include <utility>

namespace tessera::tasks {

namespace {

TrainedModel with_answer_head(TrainedModel trained) {
  TESSERA_CHECK(
      trained.head != nullptr && trained.head->finds_answers(),
      "'{}' has no head that finds answers: architectures in its config.json is {}; give the run folder of a run of question_answering, or the folder of a model such as BertForQuestionAnswering",
      trained.folder.string(),
      runtime::show_json(trained.model->config().at("architectures")));
  trained.config.as<QuestionOptions>().reads_answers = false;
  check_positions(*trained.model, trained.config.max_length);
  return trained;
}

} // namespace

QuestionPredictor::QuestionPredictor(TrainedModel trained, c10::Device device)
    : trained_(with_answer_head(std::move(trained))),
      tokenizer_(text::Tokenizer::from_folder(trained_.config.model_folder)),
      inputs_(text_inputs(
          *trained_.model,
          *trained_.head,
          tokenizer_,
          trained_.config.model_folder)) {
  inputs_.device = device;
  trained_.place(device);
}

std::vector<PredictedQuestion> QuestionPredictor::predict(
    std::vector<AnsweredQuestion> questions,
    int64_t batch_size) const {
  const at::NoGradGuard no_grad;
  const QuestionBatches batches(
      std::move(questions),
      tokenizer_,
      trained_.config.max_length,
      options(),
      inputs_);
  std::vector<at::Tensor> outputs;
  std::vector<size_t> windows;
  for (size_t i = 0; i < batches.size(); ++i) {
    windows.push_back(i);
    if (windows.size() == static_cast<size_t>(batch_size) ||
        i + 1 == batches.size()) {
      zoo::ModelInput input =
          batches.make(windows, zoo::kScoredEpoch, /*loss_only=*/false);
      input.others.clear(); // the places of answers
      outputs.push_back(
          batches.outputs_of(input, trained_.model->forward(input))
              .to(at::kCPU));
      TESSERA_CHECK(
          !outputs.back().isnan().any().item<bool>(),
          "the model's scores of answers are NaN: its weights are not finite, or too large for its dtype; export it from an earlier checkpoint, or train it again with a lower learning rate");
      windows.clear();
    }
  }
  std::vector<PredictedQuestion> answered;
  if (!outputs.empty()) {
    auto predictions = batches.predictions(at::cat(outputs).contiguous());
    for (size_t i = 0; i < predictions.size(); ++i) {
      answered.push_back({batches.questions()[i], std::move(predictions[i])});
    }
  }
  return answered;
}

} // namespace tessera::tasks
