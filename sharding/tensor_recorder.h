// SPDX-License-Identifier: Apache-2.0
#pragma once
// Hidden states of a model, picked out by its own code, for inspection.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// While it lives, record_tensor() keeps what it is given, until the recorder
/// goes. One at a time in a process; forward and backward run while it lives.
class TensorRecorder {
 public:
  struct Record {
    std::string name; ///< as recorded, with ".0", ".1", ... for each use of it
    at::Tensor tensor; ///< its grad() is there after backward
  };

  /// @throws tessera::Error when there is one already.
  TensorRecorder();
  ~TensorRecorder();
  TensorRecorder(const TensorRecorder&) = delete;
  TensorRecorder& operator=(const TensorRecorder&) = delete;

  /// In the order of the forward.
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

/// Records `tensor` when a TensorRecorder lives, and keeps its gradient; else
/// does nothing, at the cost of a load. For use in a module's forward. A
/// checkpointed block records the tensor again when it is recomputed, in the
/// same place: its gradient is known then.
void record_tensor(const at::Tensor& tensor, const std::string& name);

/// What a checkpointed forward records a second time goes where it was the
/// first time.
class RecordReplay {
 public:
  /// Where the next record goes.
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
