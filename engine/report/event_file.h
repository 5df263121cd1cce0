// SPDX-License-Identifier: Apache-2.0
#pragma once
// `EventFileWriter` writes curves for TensorBoard.

#include "tessera/engine/report/appended_file.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::engine {

/// A TensorBoard event file with scalars: TFRecords (length, its masked
/// CRC-32C, data, its masked CRC-32C) of `Event` protocol buffers in an
/// AppendedFile.
class EventFileWriter {
 public:
  using Scalars = std::vector<std::pair<std::string, double>>;

  /// Creates a new file "events.out.tfevents.*.tessera" in `folder`.
  /// @param resumed_step above 0: the run resumes after this step, and
  ///   TensorBoard hides what earlier files contain about later steps. 0: the
  ///   run is new, and the files of an earlier one are removed.
  EventFileWriter(
      const std::filesystem::path& folder,
      int64_t resumed_step = 0);

  /// Writes one point of each curve, as float32. Leaves no part of a record if
  /// it throws.
  void write(int64_t step, const Scalars& scalars);

 private:
  void write_record(const std::string& event);

  std::optional<AppendedFile> file_;
};

} // namespace tessera::engine
