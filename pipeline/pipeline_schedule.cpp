// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/pipeline_schedule.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace tessera {

namespace {

struct OpTraits {
  PipelineOp op;
  const char* name;
  char letter;
};

constexpr std::array<OpTraits, 9> kOps{{
    {PipelineOp::kForward, "forward", 'F'},
    {PipelineOp::kBackward, "backward", 'B'},
    {PipelineOp::kBackwardInput, "input gradient", 'I'},
    {PipelineOp::kBackwardWeight, "weight gradient", 'W'},
    {PipelineOp::kSendActivation, "send of the activation", 's'},
    {PipelineOp::kReceiveActivation, "receive of the activation", 'r'},
    {PipelineOp::kSendGradient, "send of the gradient", 'S'},
    {PipelineOp::kReceiveGradient, "receive of the gradient", 'R'},
    {PipelineOp::kReduceGradients, "reduction of gradients", '+'},
}};

const OpTraits& traits_of(PipelineOp op) {
  return *std::find_if(kOps.begin(), kOps.end(), [&](const OpTraits& traits) {
    return traits.op == op;
  });
}

std::string abbreviate(const PipelineInstruction& instruction) {
  std::string text(1, traits_of(instruction.op).letter);
  if (instruction.op != PipelineOp::kReduceGradients) {
    text += std::to_string(instruction.micro_batch);
  }
  if (instruction.chunk != 0) {
    text += '.';
    text += std::to_string(instruction.chunk);
  }
  return text;
}

} // namespace

bool is_send(PipelineOp op) {
  return op == PipelineOp::kSendActivation || op == PipelineOp::kSendGradient;
}

bool is_transfer(PipelineOp op) {
  return is_send(op) || op == PipelineOp::kReceiveActivation ||
         op == PipelineOp::kReceiveGradient;
}

bool is_backward(PipelineOp op) {
  return op == PipelineOp::kBackward || op == PipelineOp::kBackwardInput ||
         op == PipelineOp::kBackwardWeight;
}

std::string describe(const PipelineInstruction& instruction) {
  std::string text = traits_of(instruction.op).name;
  if (instruction.op != PipelineOp::kReduceGradients) {
    text += " of micro-batch " + std::to_string(instruction.micro_batch);
  }
  return text + " on chunk " + std::to_string(instruction.chunk);
}

TransferEnd other_end(
    const PipelineShape& shape,
    int stage,
    const PipelineInstruction& transfer) {
  PipelineOp op{};
  int step = 0;
  switch (transfer.op) {
    case PipelineOp::kSendActivation:
      op = PipelineOp::kReceiveActivation;
      step = 1;
      break;
    case PipelineOp::kReceiveActivation:
      op = PipelineOp::kSendActivation;
      step = -1;
      break;
    case PipelineOp::kSendGradient:
      op = PipelineOp::kReceiveGradient;
      step = -1;
      break;
    case PipelineOp::kReceiveGradient:
      op = PipelineOp::kSendGradient;
      step = 1;
      break;
    default:
      TESSERA_FAIL("other_end: a {} is not a transfer.", describe(transfer));
  }
  const int model_chunk = shape.model_chunk(stage, transfer.chunk) + step;
  TESSERA_CHECK(
      shape.has_transfers() && model_chunk >= 0 &&
          model_chunk < shape.model_chunks(),
      "pipeline stage {} has a {} with no other end: the model's {} pieces lie on {} stages. Remove the transfer.",
      stage,
      describe(transfer),
      shape.model_chunks(),
      shape.stages);
  return {
      shape.stage_of(model_chunk),
      {op, transfer.micro_batch, shape.chunk_of(model_chunk)}};
}

std::string describe(const PipelineSchedule& schedule) {
  std::string text;
  for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    text += "stage " + std::to_string(stage) + ":";
    for (const PipelineInstruction& instruction : schedule.stages[stage]) {
      text += ' ';
      text += abbreviate(instruction);
    }
    text += "\n";
  }
  return text;
}

} // namespace tessera
