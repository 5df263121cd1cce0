// SPDX-License-Identifier: Apache-2.0
#pragma once
// Curves for TensorBoard.

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// A TensorBoard event file with scalars: TFRecords (length, its masked
/// CRC-32C, data, its masked CRC-32C) of `Event` protocol buffers. Each record
/// reaches the file in one system call. Used by one thread. Blocks on the disk;
/// throws Error naming the file.
class EventFileWriter {
 public:
  using Scalars = std::vector<std::pair<std::string, double>>;

  /// Makes a new file "events.out.tfevents.*.tessera" in `folder`.
  /// @param resumed_step above 0: a run goes on behind this step, and
  ///   TensorBoard hides what earlier files say about later ones. 0: the run is
  ///   new, and files of an earlier one are removed.
  EventFileWriter(
      const std::filesystem::path& folder,
      int64_t resumed_step = 0);
  ~EventFileWriter();
  EventFileWriter(const EventFileWriter&) = delete;
  EventFileWriter& operator=(const EventFileWriter&) = delete;

  /// One point of each curve, in float32.
  void write(int64_t step, const Scalars& scalars);

 private:
  void write_record(const std::string& event);

  std::filesystem::path path_;
  int fd_ = -1;
};

} // namespace tessera
