// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AppendedFile` is a file that grows by whole records.

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::engine {

/// Appends records, each by one system call, so that the file can be followed
/// while it grows and survives the death of the process (not that of the
/// machine). Used by one thread. Blocks on the disk; throws tessera::Error
/// naming the file.
class AppendedFile {
 public:
  enum class Mode {
    kNew, ///< Truncates an existing file.
    kAppend, ///< After what the file has.
    kAppendLines, ///< After its last whole line.
    kCreate, ///< The file must not exist; see is_open().
  };

  /// @param label the file is, for errors: "the metrics file".
  AppendedFile(std::filesystem::path path, std::string label, Mode mode);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  /// False only with kCreate, if the file exists.
  bool is_open() const {
    return fd_ >= 0;
  }
  const std::filesystem::path& path() const {
    return path_;
  }

  /// Leaves no part of the record if it throws.
  void append(std::string_view record);

 private:
  [[noreturn]] void fail() const;
  void cut_torn_line();

  std::filesystem::path path_;
  std::string label_;
  int fd_ = -1;
};

} // namespace tessera::engine
