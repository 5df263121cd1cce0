// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TensorRecorder` records hidden states that a model's code passes to
// record_tensor(), for inspection.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// While a recorder is alive, record_tensor() adds tensors to it. There can be
/// one recorder in a process at a time; it must be alive during forward and
/// backward.
class TensorRecorder {
 public:
  struct Record {
    /// recorded name; ".0", ".1", ... are appended for each use of it
    std::string name;
    at::Tensor tensor; ///< its grad() is set after backward
  };

  /// @throws tessera::Error when there already is a recorder.
  TensorRecorder();
  ~TensorRecorder();
  TensorRecorder(const TensorRecorder&) = delete;
  TensorRecorder& operator=(const TensorRecorder&) = delete;

  /// The records, in the order of the forward.
  const std::vector<Record>& records() const {
    return records_;
  }

 private:
  friend class RecordReplay;
  friend void record_tensor(const at::Tensor&, const std::string&);
  std::string number_name(const std::string& name) const;

  std::vector<Record> records_;
  /// Where a recomputed forward records again; past the end otherwise.
  size_t position_ = SIZE_MAX;
};

/// Records `tensor` and retains its gradient if a TensorRecorder is alive;
/// otherwise costs one load. For use in a module's forward. When a checkpointed
/// block is recomputed, the recomputed tensor, whose gradient is known then,
/// replaces the first one.
void record_tensor(const at::Tensor& tensor, const std::string& name);

/// While a `RecordReplay` is alive, tensors that a recomputed forward records
/// replace those that it recorded the first time.
class RecordReplay {
 public:
  /// Index of the next record.
  struct Position {
    const TensorRecorder* recorder = nullptr;
    size_t index = 0;
  };
  static Position now();

  explicit RecordReplay(const Position& position);
  ~RecordReplay();
  RecordReplay(const RecordReplay&) = delete;
  RecordReplay& operator=(const RecordReplay&) = delete;

 private:
  TensorRecorder* recorder_;
  size_t position_before_ = 0;
};

} // namespace tessera
