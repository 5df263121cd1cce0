// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/pipeline_transfers.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace tessera::pipeline {

namespace {

// A header is a fixed number of integers: the number of tensors, and for each
// its dtype, whether it requires a gradient and is on the CPU, its dimensions
// and sizes.
constexpr size_t kMaxTensors = 128;
constexpr size_t kMaxDims = 8;
constexpr size_t kFormWords = 3 + kMaxDims;
constexpr size_t kHeaderWords = 1 + kMaxTensors * kFormWords;

at::Tensor header_of(const TensorForms& forms, const std::string& label) {
  TESSERA_CHECK(
      forms.size() <= kMaxTensors,
      "{}: a piece of the pipeline passes on {} tensors; it can pass on {} at most.",
      label,
      forms.size(),
      kMaxTensors);
  const at::Tensor header =
      at::zeros({static_cast<int64_t>(kHeaderWords)}, at::kLong);
  auto* words = header.mutable_data_ptr<int64_t>();
  *words++ = static_cast<int64_t>(forms.size());
  for (const TensorForm& form : forms) {
    TESSERA_CHECK(
        form.sizes.size() <= kMaxDims,
        "{}: a piece of the pipeline passes on a tensor of {} dimensions; it can have {} at most.",
        label,
        form.sizes.size(),
        kMaxDims);
    words[0] = static_cast<int64_t>(form.dtype);
    words[1] = (form.requires_grad ? 1 : 0) + (form.on_cpu ? 2 : 0);
    words[2] = static_cast<int64_t>(form.sizes.size());
    std::copy(form.sizes.begin(), form.sizes.end(), words + 3);
    words += kFormWords;
  }
  return header;
}

TensorForms forms_in(const at::Tensor& header) {
  const auto* words = header.const_data_ptr<int64_t>();
  TensorForms forms(static_cast<size_t>(*words++));
  for (TensorForm& form : forms) {
    form.dtype = static_cast<at::ScalarType>(words[0]);
    form.requires_grad = (words[1] & 1) != 0;
    form.on_cpu = (words[1] & 2) != 0;
    form.sizes.assign(words + 3, words + 3 + words[2]);
    words += kFormWords;
  }
  return forms;
}

} // namespace

TensorForms forms_of(const std::vector<at::Tensor>& tensors) {
  TensorForms forms;
  for (const at::Tensor& tensor : tensors) {
    TensorForm form{at::ScalarType::Undefined};
    if (tensor.defined()) {
      form = {
          tensor.scalar_type(),
          tensor.sizes().vec(),
          tensor.requires_grad(),
          tensor.is_cpu()};
    }
    forms.push_back(std::move(form));
  }
  return forms;
}

std::string describe(const TensorForms& forms) {
  std::ostringstream text;
  for (const TensorForm& form : forms) {
    text << (text.tellp() > 0 ? ", " : "") << at::IntArrayRef(form.sizes) << " "
         << form.dtype;
  }
  return forms.empty() ? "no tensors" : text.str();
}

void IncomingTensors::wait(const WaitCheck& check) {
  for (runtime::LaneCollective& one : pending) {
    one.wait(check);
  }
  pending.clear();
}

PipelineTransfers::PipelineTransfers(
    runtime::RingChannels& channels,
    bool forms_each_time)
    : channels_(channels), forms_each_time_(forms_each_time) {}

void PipelineTransfers::begin_batch(const WaitCheck& check) {
  for (runtime::LaneCollective& one : last_batch_) {
    one.wait(check);
  }
  last_batch_ = std::exchange(this_batch_, {});
}

void PipelineTransfers::finish(const WaitCheck& check) {
  begin_batch(check);
  begin_batch(check);
}

void PipelineTransfers::send(
    const at::Tensor& tensor,
    int to,
    const std::string& label) {
  this_batch_.push_back(
      channels_.send(tensor.detach().contiguous(), to, label));
}

IncomingTensors PipelineTransfers::receive(
    const TensorForms& forms,
    int from,
    const std::string& label) {
  IncomingTensors incoming;
  for (const TensorForm& form : forms) {
    if (!form.is_defined()) {
      incoming.tensors.emplace_back();
      continue;
    }
    incoming.pending.push_back(channels_.receive_new(
        form.sizes,
        at::device(form.on_cpu ? at::Device(at::kCPU) : channels_.device())
            .dtype(form.dtype),
        from,
        label));
    incoming.tensors.push_back(incoming.pending.back().tensor());
  }
  return incoming;
}

void PipelineTransfers::send_activations(
    const std::vector<at::Tensor>& tensors,
    int border,
    int to,
    const std::string& label) {
  const TensorForms forms = forms_of(tensors);
  const auto [known, first] = sent_forms_.try_emplace(border, forms);
  if (first || forms_each_time_) {
    send(header_of(forms, label), to, label);
  } else {
    TESSERA_CHECK(
        known->second == forms,
        "{}: a piece of the pipeline passed on {} before, but now {} (or gradients for others of them). Give all micro-batches one shape, or set PipelineOptions::shapes_vary.",
        label,
        describe(known->second),
        describe(forms));
  }
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      send(tensor, to, label);
    }
  }
}

IncomingTensors PipelineTransfers::receive_activations(
    int border,
    int from,
    const std::string& label,
    TensorForms& forms,
    const WaitCheck& check) {
  const auto known = received_forms_.find(border);
  if (known == received_forms_.end() || forms_each_time_) {
    const at::Tensor header =
        at::zeros({static_cast<int64_t>(kHeaderWords)}, at::kLong);
    channels_.receive(header, from, label).wait(check);
    received_forms_[border] = forms_in(header);
  }
  forms = received_forms_[border];
  return receive(forms, from, label);
}

void PipelineTransfers::send_gradients(
    const std::vector<at::Tensor>& tensors,
    int to,
    const std::string& label) {
  for (const at::Tensor& tensor : tensors) {
    send(tensor, to, label);
  }
}

IncomingTensors PipelineTransfers::receive_gradients(
    const TensorForms& forms,
    int from,
    const std::string& label) {
  return receive(forms, from, label);
}

} // namespace tessera::pipeline
