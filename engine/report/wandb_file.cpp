// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/wandb_file.h"

#include "tessera/engine/report/crc32.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <random>

namespace tessera::engine {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderPrefix = "offline-run-";

/// Fields of Record.
constexpr int kNum = 1;
constexpr int kHistory = 2;
constexpr int kSummary = 3;
constexpr int kRun = 17;
constexpr int kExit = 18;
constexpr int kHeader = 21;

/// [Note: W&B log] Blocks of 32 KiB hold fragments of records: checksum,
/// length, type, data. A fragment does not cross the end of a block; less than
/// a fragment's header there is filled with zeros. The header of the file
/// counts as part of the first block.
constexpr int64_t kBlockBytes = 32768;
constexpr int64_t kFragmentHeaderBytes = 7;

enum FragmentType : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

std::string fragment(FragmentType type, std::string_view data) {
  std::string checked(1, static_cast<char>(type));
  checked += data;
  std::string bytes;
  append_little_endian(bytes, crc32<kCrc32>(checked));
  append_little_endian(bytes, static_cast<uint16_t>(data.size()));
  return bytes + checked;
}

/// Eight letters and digits, as W&B's own.
std::string new_id() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device device;
  std::uniform_int_distribution<size_t> letter(0, kLetters.size() - 1);
  std::string id;
  while (id.size() < 8) {
    id += kLetters[letter(device)];
  }
  return id;
}

/// The newest of the folders of runs; their names begin with the date.
fs::path newest_run(const fs::path& folder) {
  fs::path newest;
  if (fs::is_directory(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().filename().string().starts_with(kFolderPrefix)) {
        newest = std::max(newest, entry.path());
      }
    }
  }
  return newest;
}

fs::path new_run(const fs::path& folder) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> date{};
  std::strftime(date.data(), date.size(), "%Y%m%d_%H%M%S", &parts);
  return folder / (std::string(kFolderPrefix) + date.data() + "-" + new_id());
}

double seconds_of(std::chrono::system_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// ConfigItem, HistoryItem and SummaryItem alike.
ProtoMessage item_of(
    const std::string& key,
    const nlohmann::ordered_json& value) {
  ProtoMessage item;
  item.add_bytes(1, key);
  item.add_bytes(16, value.dump());
  return item;
}

} // namespace

WandbFileWriter::WandbFileWriter(
    const fs::path& folder,
    const std::string& name,
    const nlohmann::ordered_json& configuration,
    bool continues) {
  fs::path run = continues ? newest_run(folder) : fs::path();
  if (run.empty()) {
    run = new_run(folder);
  }
  std::error_code failed; // what cannot be made cannot be opened below
  fs::create_directories(run / "files", failed);
  const std::string folder_name = run.filename().string();
  const std::string id = folder_name.substr(folder_name.rfind('-') + 1);
  file_.emplace(
      run / ("run-" + id + ".wandb"),
      "the log for Weights & Biases",
      AppendedFile::Mode::kNew);

  std::string head = ":W&B";
  append_little_endian(head, uint16_t{0xBEE1});
  head += '\0'; // version
  file_->append(head);
  position_ = static_cast<int64_t>(head.size());

  ProtoMessage version;
  version.add_bytes(1, "tessera");
  ProtoMessage header;
  header.add_message(1, version);
  ProtoMessage header_record;
  header_record.add_message(kHeader, header);
  write_record(header_record);

  ProtoMessage config;
  if (configuration.is_object()) {
    for (const auto& [key, value] : configuration.items()) {
      config.add_message(1, item_of(key, value));
    }
  }
  ProtoMessage start_time; // google.protobuf.Timestamp
  start_time.add_varint(
      1, static_cast<uint64_t>(seconds_of(start_.time_since_epoch())));
  ProtoMessage about;
  about.add_bytes(1, id);
  about.add_bytes(3, "tessera"); // project
  about.add_message(4, config);
  about.add_bytes(8, name);
  about.add_message(17, start_time);
  ProtoMessage record;
  record.add_message(kRun, about);
  write_record(record);
}

void WandbFileWriter::write(
    int64_t step,
    const nlohmann::ordered_json& values) {
  const Clock::time_point now = Clock::now();
  ProtoMessage summary;
  for (const auto& [key, value] : values.items()) {
    // JSON has no others.
    if (std::isfinite(value.get<double>())) {
      summary.add_message(1, item_of(key, value));
    }
  }
  // Steps of the history ascend; results after the last one are its summary.
  if (step > last_step_) {
    ProtoMessage history = summary;
    history.add_message(1, item_of("_step", step));
    history.add_message(
        1, item_of("_timestamp", seconds_of(now.time_since_epoch())));
    history.add_message(1, item_of("_runtime", seconds_of(now - start_)));
    ProtoMessage number;
    number.add_varint(1, static_cast<uint64_t>(step));
    history.add_message(2, number);
    ProtoMessage record;
    record.add_message(kHistory, history);
    write_record(record);
    last_step_ = step;
  }
  ProtoMessage record;
  record.add_message(kSummary, summary);
  write_record(record);
}

void WandbFileWriter::finish() {
  ProtoMessage exit;
  exit.add_varint(1, 0);
  exit.add_varint(2, static_cast<uint64_t>(seconds_of(Clock::now() - start_)));
  ProtoMessage record;
  record.add_message(kExit, exit);
  write_record(record);
}

void WandbFileWriter::write_record(ProtoMessage& record) {
  record.add_varint(kNum, static_cast<uint64_t>(++records_));
  std::string bytes;
  std::string_view rest = record.bytes();
  bool is_first = true;
  do {
    const auto position = position_ + static_cast<int64_t>(bytes.size());
    int64_t rest_bytes = kBlockBytes - position % kBlockBytes;
    if (rest_bytes < kFragmentHeaderBytes) {
      bytes.append(static_cast<size_t>(rest_bytes), '\0');
      rest_bytes = kBlockBytes;
    }
    const size_t length = std::min(
        rest.size(), static_cast<size_t>(rest_bytes - kFragmentHeaderBytes));
    const bool is_last = length == rest.size();
    bytes += fragment(
        is_first ? (is_last ? kFull : kFirst) : (is_last ? kLast : kMiddle),
        rest.substr(0, length));
    rest.remove_prefix(length);
    is_first = false;
  } while (!rest.empty());
  file_->append(bytes);
  position_ += static_cast<int64_t>(bytes.size());
}

} // namespace tessera::engine
