// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/event_file.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/posix_error.h"
#include "tessera/runtime/io/posix_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <string_view>

namespace tessera::engine {

namespace {

constexpr std::string_view kEventPrefix = "events.out.tfevents.";
constexpr std::string_view kSuffix = ".tessera";

[[noreturn]] void fail_event(const std::filesystem::path& path) {
  const int code = errno;
  TESSERA_FAIL(
      "cannot write the event file '{}': {}; {}",
      path.string(),
      runtime::detail::errno_text(code),
      runtime::detail::errno_remedy(code));
}

/// CRC-32C (Castagnoli) as TFRecords require it: rotated and offset, so that
/// checksums of data that contains checksums are not degenerate.
uint32_t masked_crc(std::string_view data) {
  static const auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t crc = byte;
      for (int bit = 0; bit < 8; ++bit) {
        crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78 : 0);
      }
      table[byte] = crc;
    }
    return table;
  }();
  uint32_t crc = ~uint32_t{0};
  for (const char c : data) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  }
  return std::rotr(~crc, 15) + 0xA282EAD8;
}

template <typename T>
void append_little_endian(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out += static_cast<char>(value >> (8 * i) & 0xFF);
  }
}

/// Writes fields of a protocol buffer.
class Message {
 public:
  void add_varint(int field, uint64_t value) {
    append_varint(static_cast<uint64_t>(field) << 3);
    append_varint(value);
  }
  void add_double(int field, double value) {
    append_varint(static_cast<uint64_t>(field) << 3 | 1);
    append_little_endian(bytes_, std::bit_cast<uint64_t>(value));
  }
  void add_float(int field, float value) {
    append_varint(static_cast<uint64_t>(field) << 3 | 5);
    append_little_endian(bytes_, std::bit_cast<uint32_t>(value));
  }
  void add_bytes(int field, std::string_view value) {
    append_varint(static_cast<uint64_t>(field) << 3 | 2);
    append_varint(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const {
    return bytes_;
  }

 private:
  void append_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
      bytes_ += static_cast<char>(value | 0x80);
    }
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

double wall_seconds() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// An Event with its wall_time (1) and step (2).
Message event_of(int64_t step) {
  Message event;
  event.add_double(1, wall_seconds());
  event.add_varint(2, static_cast<uint64_t>(step));
  return event;
}

void remove_earlier_files(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kEventPrefix) && name.ends_with(kSuffix)) {
      std::filesystem::remove(entry.path());
    }
  }
}

} // namespace

EventFileWriter::EventFileWriter(
    const std::filesystem::path& folder,
    int64_t resumed_step) {
  if (resumed_step == 0) {
    remove_earlier_files(folder);
  }
  // TensorBoard reads the files of a folder in the order of their names.
  for (auto number = static_cast<int64_t>(wall_seconds());; ++number) {
    path_ = folder / (std::string(kEventPrefix) + std::to_string(number) +
                      std::string(kSuffix));
    fd_ = ::open(
        path_.c_str(),
        O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC,
        0666);
    if (fd_ >= 0) {
      break;
    }
    if (errno != EEXIST) {
      fail_event(path_);
    }
  }
  try {
    Message version = event_of(0);
    version.add_bytes(3, "brain.Event:2");
    write_record(version.bytes());
    if (resumed_step > 0) {
      Message session; // SessionLog
      session.add_varint(1, 1); // status = START
      Message start = event_of(resumed_step + 1);
      start.add_bytes(7, session.bytes());
      write_record(start.bytes());
    }
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

EventFileWriter::~EventFileWriter() {
  ::close(fd_);
}

void EventFileWriter::write(int64_t step, const Scalars& scalars) {
  Message summary;
  for (const auto& [tag, number] : scalars) {
    Message value;
    value.add_bytes(1, tag);
    value.add_float(2, static_cast<float>(number));
    summary.add_bytes(1, value.bytes());
  }
  Message event = event_of(step);
  event.add_bytes(5, summary.bytes());
  write_record(event.bytes());
}

void EventFileWriter::write_record(const std::string& event) {
  std::string record;
  append_little_endian(record, static_cast<uint64_t>(event.size()));
  append_little_endian(record, masked_crc(record));
  record += event;
  append_little_endian(record, masked_crc(event));
  size_t done = 0;
  while (done < record.size()) {
    const ssize_t count =
        ::write(fd_, record.data() + done, record.size() - done);
    if (count < 0 && errno != EINTR) {
      runtime::detail::cut_appended(fd_, done);
      fail_event(path_);
    }
    done += count < 0 ? 0 : static_cast<size_t>(count);
  }
}

} // namespace tessera::engine
