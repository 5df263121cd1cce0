// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/pipeline_executor.h"

#include "tessera/pipeline/make_schedule.h"
#include "tessera/pipeline/validate_schedule.h"
#include "tessera/runtime/core/error.h"

#include <ATen/ops/full_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace tessera {

namespace {

using Instructions = std::vector<PipelineInstruction>;

/// The batch of transfers that begins at `begin`, sends first: sends never wait
/// for this pipeline stage, and a receive may.
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

/// Where the backwards begin, with the instructions that belong to them.
Instructions::const_iterator first_of_backward(const Instructions& list) {
  const auto is_forward = [](const PipelineInstruction& one) {
    return one.op == PipelineOp::kForward ||
           one.op == PipelineOp::kSendActivation ||
           one.op == PipelineOp::kReceiveActivation;
  };
  const auto first = std::find_if_not(list.begin(), list.end(), is_forward);
  TESSERA_CHECK(
      std::none_of(first, list.end(), is_forward),
      "PipelineExecutor: separate calls of forward() and backward() need a schedule that runs all forwards first; use gpipe.");
  return first;
}

pipeline::TensorForms with_gradient(const pipeline::TensorForms& forms) {
  pipeline::TensorForms wanted;
  for (const pipeline::TensorForm& form : forms) {
    if (form.requires_grad) {
      wanted.push_back(form);
    }
  }
  return wanted;
}

} // namespace

PipelineExecutor::PipelineExecutor(
    PipelineSchedule schedule,
    runtime::RingChannels* channels,
    const PipelineOptions& options)
    : schedule_(std::move(schedule)),
      shape_(schedule_.shape),
      channels_(channels) {
  pipeline::validate_schedule(schedule_);
  TESSERA_CHECK(
      schedule_.trains,
      "PipelineExecutor: the schedule has forwards only; pass one for training, evaluate() makes its own.");
  const int stages = channels != nullptr ? channels->size() : 1;
  TESSERA_CHECK(
      shape_.stages == stages,
      "a pipeline schedule for {} stages cannot run on {}.",
      shape_.stages,
      stages);
  if (channels != nullptr) {
    stage_ = channels->index();
    training_transfers_.emplace(*channels, options.shapes_vary);
  }
}

bool PipelineExecutor::is_last_model_chunk(int chunk) const {
  return shape_.model_chunk(stage_, chunk) == shape_.model_chunks() - 1;
}

std::vector<at::Tensor> PipelineExecutor::run(
    const PipelineCallbacks& callbacks,
    double loss_scale,
    const WaitCheck& check) {
  begin_step();
  check_ = check;
  ends_in_loss_ = true;
  loss_gradient_ = loss_scale / shape_.micro_batches;
  follow(local(schedule_), callbacks, /*trains=*/true);
  Tensors losses;
  for (Tensors& result : take_results()) {
    losses.push_back(std::move(result[0]));
  }
  return losses;
}

std::vector<std::vector<at::Tensor>> PipelineExecutor::forward(
    const PipelineForward& forward) {
  begin_step();
  ends_in_loss_ = false;
  const Instructions& list = local(schedule_);
  follow(
      Instructions(list.begin(), first_of_backward(list)),
      {forward, {}},
      /*trains=*/true);
  return take_results();
}

void PipelineExecutor::backward(std::vector<Tensors> gradients) {
  const Instructions& list = local(schedule_);
  given_gradients_ = std::move(gradients);
  follow(
      Instructions(first_of_backward(list), list.end()), {}, /*trains=*/true);
  given_gradients_.reset();
}

std::vector<std::vector<at::Tensor>> PipelineExecutor::evaluate(
    const PipelineForward& forward,
    int micro_batches) {
  begin_step();
  std::optional<pipeline::PipelineTransfers> transfers;
  if (channels_ != nullptr) {
    transfers.emplace(*channels_, /*forms_each_time=*/true);
  }
  transfers_ = transfers ? &*transfers : nullptr;
  shape_.micro_batches = micro_batches;
  const PipelineSchedule schedule = make_forward_schedule(shape_);
  pipeline::validate_schedule(schedule);
  const c10::NoGradGuard no_grad;
  follow(local(schedule), {forward, {}}, /*trains=*/false);
  return take_results();
}

void PipelineExecutor::begin_step() {
  transfers_ = training_transfers_ ? &*training_transfers_ : nullptr;
  shape_ = schedule_.shape;
  in_flight_.clear();
  results_.clear();
  check_ = {};
}

std::vector<PipelineExecutor::Tensors> PipelineExecutor::take_results() {
  std::vector<Tensors> results;
  for (auto& [micro_batch, result] : std::exchange(results_, {})) {
    results.push_back(std::move(result));
  }
  return results;
}

void PipelineExecutor::follow(
    const Instructions& list,
    const PipelineCallbacks& callbacks,
    bool trains) {
  for (size_t i = 0; i < list.size();) {
    const PipelineInstruction& now = list[i];
    if (is_transfer(now.op)) {
      const auto end = std::find_if(
          list.begin() + static_cast<std::ptrdiff_t>(i),
          list.end(),
          [](const auto& next) { return !is_transfer(next.op); });
      const auto after = static_cast<size_t>(end - list.begin());
      transfers_->begin_batch(check_);
      for (const auto& one : sends_first(list, i, after)) {
        transfer(one);
      }
      i = after;
      continue;
    }
    const Work work{now.chunk, now.micro_batch};
    if (now.op == PipelineOp::kForward) {
      forward(work, callbacks.forward, trains);
    } else if (is_backward(now.op)) {
      backward(now.op, work);
    } else if (callbacks.gradients_complete) {
      callbacks.gradients_complete(now.chunk);
    }
    ++i;
  }
  if (transfers_ != nullptr) {
    transfers_->finish(check_);
  }
}

void PipelineExecutor::transfer(const PipelineInstruction& instruction) {
  const TransferEnd end = other_end(shape_, stage_, instruction);
  const std::string label = formatted(
      "pipeline stage {}, {}{}{}",
      stage_,
      describe(instruction),
      is_send(instruction.op) ? " to stage " : " from stage ",
      end.stage);
  const int model_chunk = shape_.model_chunk(stage_, instruction.chunk);
  InFlight& flight = in_flight_[{instruction.chunk, instruction.micro_batch}];
  switch (instruction.op) {
    case PipelineOp::kSendActivation:
      transfers_->send_activations(
          flight.outputs, model_chunk + 1, end.stage, label);
      flight.outputs.clear();
      return;
    case PipelineOp::kReceiveActivation:
      flight.inputs = transfers_->receive_activations(
          model_chunk, end.stage, label, flight.input_forms, check_);
      return;
    case PipelineOp::kSendGradient:
      transfers_->send_gradients(
          flight.graph->take_input_gradients(), end.stage, label);
      return;
    default:
      flight.output_gradients = transfers_->receive_gradients(
          with_gradient(flight.output_forms), end.stage, label);
  }
}

PipelineExecutor::Tensors PipelineExecutor::take_inputs(const Work& work) {
  const auto [chunk, micro_batch] = work;
  if (shape_.model_chunk(stage_, chunk) == 0) {
    return {};
  }
  InFlight& flight = in_flight_[work];
  Tensors inputs;
  if (shape_.has_transfers()) {
    flight.inputs.wait(check_);
    inputs = std::move(flight.inputs.tensors);
  } else {
    // The piece before it is the chunk before it.
    InFlight& before = in_flight_[{chunk - 1, micro_batch}];
    flight.input_forms = before.output_forms;
    inputs = std::move(before.outputs);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) {
      continue;
    }
    inputs[i] = inputs[i].detach().set_requires_grad(
        flight.input_forms[i].requires_grad);
  }
  return inputs;
}

void PipelineExecutor::forward(
    const Work& work,
    const PipelineForward& function,
    bool trains) {
  const auto [chunk, micro_batch] = work;
  const Tensors inputs = take_inputs(work);
  Tensors outputs = function(chunk, micro_batch, inputs);
  InFlight& flight = in_flight_[work];
  flight.output_forms = pipeline::forms_of(outputs);
  if (trains) {
    flight.graph.emplace(inputs, outputs);
  }
  if (!is_last_model_chunk(chunk)) {
    flight.outputs = std::move(outputs);
    return;
  }
  for (at::Tensor& output : outputs) {
    if (output.defined()) {
      output = output.detach();
    }
  }
  results_[micro_batch] = std::move(outputs);
  if (trains && ends_in_loss_) {
    check_loss(work);
  }
}

void PipelineExecutor::check_loss(const Work& work) const {
  const auto [chunk, micro_batch] = work;
  const pipeline::TensorForms& forms = in_flight_.at(work).output_forms;
  TESSERA_CHECK(
      forms.size() == 1 && forms[0].requires_grad &&
          results_.at(micro_batch)[0].numel() == 1,
      "the last piece of the pipeline must return a loss that requires a gradient, a single number, but returned {} for micro-batch {}.",
      describe(forms),
      micro_batch);
}

PipelineExecutor::Tensors PipelineExecutor::take_output_gradients(
    const Work& work) {
  const auto [chunk, micro_batch] = work;
  if (is_last_model_chunk(chunk)) {
    return given_gradients_ ? std::move(given_gradients_->at(
                                  static_cast<size_t>(micro_batch)))
                            : Tensors{at::full_like(
                                  results_.at(micro_batch)[0], loss_gradient_)};
  }
  InFlight& flight = in_flight_[work];
  if (shape_.has_transfers()) {
    flight.output_gradients.wait(check_);
    return std::move(flight.output_gradients.tensors);
  }
  return in_flight_[{chunk + 1, micro_batch}].graph->take_input_gradients();
}

void PipelineExecutor::backward(PipelineOp op, const Work& work) {
  pipeline::ModelChunkGraph& graph = *in_flight_[work].graph;
  switch (op) {
    case PipelineOp::kBackward:
      graph.backward(take_output_gradients(work));
      return;
    case PipelineOp::kBackwardInput:
      graph.backward_input(take_output_gradients(work));
      return;
    default:
      graph.backward_weight();
  }
}

} // namespace tessera
