// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/pipeline_executor.h"

#include "tessera/pipeline/validate_schedule.h"
#include "tessera/runtime/core/error.h"

#include <ATen/ops/full_like.h>

#include <algorithm>

namespace tessera {

namespace {

using Instructions = std::vector<PipelineInstruction>;

/// The batch of transfers that begins at `begin`, sends first: they never wait
/// for this stage, and a receive may.
Instructions sends_first(const Instructions& list, size_t begin, size_t end) {
  Instructions batch(
      list.begin() + static_cast<std::ptrdiff_t>(begin),
      list.begin() + static_cast<std::ptrdiff_t>(end));
  std::stable_partition(
      batch.begin(), batch.end(), [](const PipelineInstruction& transfer) {
        return is_send(transfer.op);
      });
  return batch;
}

TensorForms with_gradient(const TensorForms& forms) {
  TensorForms wanted;
  for (const TensorForm& form : forms) {
    if (form.requires_grad) {
      wanted.push_back(form);
    }
  }
  return wanted;
}

} // namespace

PipelineExecutor::PipelineExecutor(
    PipelineSchedule schedule,
    RingChannels* channels,
    const PipelineOptions& options)
    : schedule_(std::move(schedule)), shape_(schedule_.shape) {
  validate_schedule(schedule_);
  const int stages = channels != nullptr ? channels->size() : 1;
  TESSERA_CHECK(
      shape_.stages == stages,
      "a pipeline schedule for ",
      shape_.stages,
      " stages cannot run on ",
      stages,
      ".");
  if (channels != nullptr) {
    stage_ = channels->index();
    transfers_.emplace(*channels, options.shapes_vary);
  }
}

bool PipelineExecutor::is_last_piece(int chunk) const {
  return shape_.piece(stage_, chunk) == shape_.pieces() - 1;
}

std::vector<at::Tensor> PipelineExecutor::run(
    const PipelineCallbacks& callbacks,
    double loss_scale) {
  in_flight_.clear();
  losses_.clear();
  const double loss_gradient = loss_scale / shape_.micro_batches;
  const Instructions& list = schedule_.stages[static_cast<size_t>(stage_)];
  for (size_t i = 0; i < list.size();) {
    const PipelineInstruction& now = list[i];
    if (is_transfer(now.op)) {
      const auto end = std::find_if(
          list.begin() + static_cast<std::ptrdiff_t>(i),
          list.end(),
          [](const auto& next) { return !is_transfer(next.op); });
      const auto after = static_cast<size_t>(end - list.begin());
      transfers_->begin_batch();
      for (const auto& one : sends_first(list, i, after)) {
        transfer(one);
      }
      i = after;
      continue;
    }
    if (now.op == PipelineOp::kForward) {
      forward({now.chunk, now.micro_batch}, callbacks);
    } else if (is_backward(now.op)) {
      backward(now.op, {now.chunk, now.micro_batch}, loss_gradient);
    } else if (callbacks.gradients_complete) {
      callbacks.gradients_complete(now.chunk);
    }
    ++i;
  }
  if (transfers_) {
    transfers_->finish();
  }
  Tensors losses;
  for (auto& [micro_batch, loss] : losses_) {
    losses.push_back(loss);
  }
  return losses;
}

void PipelineExecutor::transfer(const PipelineInstruction& instruction) {
  const TransferEnd end = other_end(shape_, stage_, instruction);
  const std::string what = detail::concat(
      "stage ",
      stage_,
      ", ",
      describe(instruction),
      is_send(instruction.op) ? " to stage " : " from stage ",
      end.stage);
  const int piece = shape_.piece(stage_, instruction.chunk);
  InFlight& flight = in_flight_[{instruction.chunk, instruction.micro_batch}];
  switch (instruction.op) {
    case PipelineOp::kSendActivation:
      transfers_->send_activations(flight.outputs, piece + 1, end.stage, what);
      flight.outputs.clear();
      return;
    case PipelineOp::kReceiveActivation:
      flight.inputs = transfers_->receive_activations(
          piece, end.stage, what, flight.input_forms);
      return;
    case PipelineOp::kSendGradient:
      transfers_->send_gradients(
          flight.graph->take_input_gradients(), end.stage, what);
      return;
    default:
      flight.output_gradients = transfers_->receive_gradients(
          with_gradient(flight.output_forms), end.stage, what);
  }
}

PipelineExecutor::Tensors PipelineExecutor::take_inputs(const Work& work) {
  const auto [chunk, micro_batch] = work;
  if (shape_.piece(stage_, chunk) == 0) {
    return {};
  }
  InFlight& flight = in_flight_[work];
  Tensors inputs;
  if (shape_.has_transfers()) {
    flight.inputs.wait();
    inputs = std::move(flight.inputs.tensors);
  } else {
    // The piece before it is the chunk before it.
    InFlight& before = in_flight_[{chunk - 1, micro_batch}];
    flight.input_forms = before.output_forms;
    inputs = std::move(before.outputs);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = inputs[i].detach().set_requires_grad(
        flight.input_forms[i].requires_grad);
  }
  return inputs;
}

void PipelineExecutor::forward(
    const Work& work,
    const PipelineCallbacks& callbacks) {
  const auto [chunk, micro_batch] = work;
  const Tensors inputs = take_inputs(work);
  Tensors outputs = callbacks.forward(chunk, micro_batch, inputs);
  InFlight& flight = in_flight_[work];
  flight.graph.emplace(inputs, outputs);
  flight.output_forms = forms_of(outputs);
  if (!is_last_piece(chunk)) {
    flight.outputs = std::move(outputs);
    return;
  }
  TESSERA_CHECK(
      outputs.size() == 1 && outputs[0].numel() == 1 &&
          outputs[0].requires_grad(),
      "the last piece of the pipeline has to return a loss that requires a "
      "gradient, one number, and returned ",
      describe(flight.output_forms),
      " for micro-batch ",
      micro_batch,
      ".");
  losses_[micro_batch] = outputs[0].detach();
}

PipelineExecutor::Tensors PipelineExecutor::take_output_gradients(
    const Work& work,
    double loss_gradient) {
  const auto [chunk, micro_batch] = work;
  if (is_last_piece(chunk)) {
    return {at::full_like(losses_.at(micro_batch), loss_gradient)};
  }
  InFlight& flight = in_flight_[work];
  if (shape_.has_transfers()) {
    flight.output_gradients.wait();
    return std::move(flight.output_gradients.tensors);
  }
  return in_flight_[{chunk + 1, micro_batch}].graph->take_input_gradients();
}

void PipelineExecutor::backward(
    PipelineOp op,
    const Work& work,
    double loss_gradient) {
  PieceGraph& graph = *in_flight_[work].graph;
  switch (op) {
    case PipelineOp::kBackward:
      graph.backward(take_output_gradients(work, loss_gradient));
      return;
    case PipelineOp::kBackwardInput:
      graph.backward_input(take_output_gradients(work, loss_gradient));
      return;
    default:
      graph.backward_weight();
  }
}

} // namespace tessera
