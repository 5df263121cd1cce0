// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/inspection/tensor_recorder.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <atomic>

namespace tessera {

namespace {

// Global, because a model's forward does not know the recorder, and
// thread_local would not do: backward, and with it recomputation, may run on
// another thread.
std::atomic<TensorRecorder*> active{nullptr};

} // namespace

TensorRecorder::TensorRecorder() {
  TensorRecorder* none = nullptr;
  TESSERA_CHECK(
      active.compare_exchange_strong(none, this),
      "TensorRecorder: there already is one; a process can have only one at a time.");
}

TensorRecorder::~TensorRecorder() {
  active = nullptr;
}

std::string TensorRecorder::number_name(const std::string& name) const {
  const auto uses =
      std::count_if(records_.begin(), records_.end(), [&](const auto& record) {
        return record.name.substr(0, record.name.rfind('.')) == name;
      });
  return name + "." + std::to_string(uses);
}

void record_tensor(const at::Tensor& tensor, const std::string& name) {
  TensorRecorder* recorder = active;
  if (recorder == nullptr) {
    return;
  }
  TESSERA_CHECK(tensor.defined(), "record_tensor: '{}' is undefined.", name);
  if (tensor.requires_grad() && !tensor.is_leaf()) {
    tensor.retain_grad();
  }
  if (recorder->position_ < recorder->records_.size()) {
    recorder->records_[recorder->position_++].tensor = tensor;
  } else {
    recorder->records_.push_back({recorder->number_name(name), tensor});
  }
}

RecordReplay::Position RecordReplay::now() {
  const TensorRecorder* recorder = active;
  if (recorder == nullptr) {
    return {};
  }
  return {recorder, std::min(recorder->position_, recorder->records_.size())};
}

RecordReplay::RecordReplay(const Position& position)
    : recorder_(active.load() == position.recorder ? active.load() : nullptr) {
  if (recorder_ != nullptr) {
    position_before_ = recorder_->position_;
    recorder_->position_ = position.index;
  }
}

RecordReplay::~RecordReplay() {
  if (recorder_ != nullptr) {
    recorder_->position_ = position_before_;
  }
}

} // namespace tessera
