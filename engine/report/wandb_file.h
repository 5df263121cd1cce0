// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WandbFileWriter` writes a run as Weights & Biases keeps it while it is
// offline.

#include "tessera/engine/report/appended_file.h"
#include "tessera/engine/report/proto_message.h"

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::engine {

/// A folder "offline-run-DATE-ID" with a transaction log run-ID.wandb, which
/// `wandb sync FOLDER` sends to a server: `Record` protocol buffers
/// (wandb_internal.proto) in the log format of LevelDB, whose checksums are
/// here zlib's, after a header. Of a run that resumes, the log is written anew
/// under the same ID, so that the server gets one run.
///
/// Used by one thread. Blocks on the disk; throws tessera::Error naming the
/// file.
class WandbFileWriter {
 public:
  /// @param folder of such folders; is made.
  /// @param name that is shown for the run.
  /// @param configuration an object, or null.
  /// @param continues the newest run of `folder`, if there is one.
  WandbFileWriter(
      const std::filesystem::path& folder,
      const std::string& name,
      const nlohmann::ordered_json& configuration,
      bool continues);

  /// @param values an object of numbers by name.
  void write(int64_t step, const nlohmann::ordered_json& values);

  /// Records that the run has ended.
  void finish();

 private:
  using Clock = std::chrono::system_clock;

  void write_record(ProtoMessage& record);

  std::optional<AppendedFile> file_;
  int64_t position_ = 0; ///< bytes of the file
  int64_t records_ = 0;
  int64_t last_step_ = -1;
  Clock::time_point start_ = Clock::now();
};

} // namespace tessera::engine
