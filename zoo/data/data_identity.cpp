// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/data_identity.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/checksum.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlockBytes = 64 << 10;
constexpr uint64_t kBlocks = 1024; ///< of all files together

uint64_t size_of_file(const fs::path& path) {
  std::error_code code;
  const auto bytes = fs::file_size(path, code);
  TESSERA_CHECK(!code, "cannot read '{}': {}", path.string(), code.message());
  return bytes;
}

/// The whole file, or blocks from its first to its last byte.
std::string sample_of(const fs::path& path, uint64_t bytes, uint64_t blocks) {
  std::ifstream file(path, std::ios::binary);
  const bool is_complete = bytes <= blocks * kBlockBytes;
  const uint64_t count = is_complete ? 1 : blocks;
  const uint64_t length = is_complete ? bytes : kBlockBytes;
  std::string sample(count * length, '\0');
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t last = bytes - length;
    file.seekg(
        static_cast<std::streamoff>(count == 1 ? 0 : last / (count - 1) * i));
    file.read(sample.data() + i * length, static_cast<std::streamsize>(length));
  }
  TESSERA_CHECK(file.good() || bytes == 0, "cannot read '{}'", path.string());
  return sample;
}

struct NamedFile {
  fs::path path;
  std::string name; ///< in its data
};

std::vector<NamedFile> data_files(const fs::path& path) {
  std::vector<NamedFile> files;
  if (!fs::is_directory(path)) {
    return {{path, path.filename().string()}};
  }
  for (const auto& entry : fs::recursive_directory_iterator(
           path, fs::directory_options::follow_directory_symlink)) {
    if (entry.is_regular_file()) {
      files.push_back(
          {entry.path(), entry.path().lexically_relative(path).string()});
    }
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
    return a.path < b.path;
  });
  return files;
}

} // namespace

nlohmann::json data_identity(const std::vector<fs::path>& paths) {
  std::vector<NamedFile> files;
  std::string names;
  for (const fs::path& path : paths) {
    const auto more = data_files(path);
    files.insert(files.end(), more.begin(), more.end());
    names += (names.empty() ? "" : ", ") + path.string();
  }
  const size_t count = std::max<size_t>(1, files.size());
  const uint64_t blocks = std::max<uint64_t>(2, kBlocks / count);
  // Of many files, as of images, the contents of some that lie evenly.
  const size_t apart = (count + kBlocks - 1) / kBlocks;
  const auto checksum = [](const std::string& text) {
    return runtime::checksum_of(std::as_bytes(std::span(text)));
  };
  uint64_t bytes = 0;
  std::string all;
  for (size_t i = 0; i < files.size(); ++i) {
    const fs::path& file = files[i].path;
    const uint64_t file_bytes = size_of_file(file);
    bytes += file_bytes;
    // The same file is the same data under another name.
    all += formatted(
        "{} {} {}\n",
        files.size() == 1 ? "" : files[i].name,
        file_bytes,
        i % apart == 0 ? checksum(sample_of(file, file_bytes, blocks)) : "");
  }
  return {{"path", names}, {"bytes", bytes}, {"checksum", checksum(all)}};
}

} // namespace tessera::zoo
