// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/document_writer.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/posix_file.h"
#include "tessera/zoo/data/megatron_index.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

constexpr size_t kBufferBytes = 1 << 20;

template <typename Value>
void append_value(std::string& buffer, Value value) {
  buffer.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

} // namespace

void DocumentWriter::Part::open(int64_t bytes) {
  fd.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!fd.is_open()) {
    runtime::detail::fail_on("write", path, errno);
  }
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) {
    runtime::detail::fail_on("read", path, errno);
  }
  TESSERA_CHECK(
      found.st_size >= bytes,
      "'{}' has {} bytes, fewer than the {} that were written before the interruption; remove it and begin anew with --overwrite",
      path.string(),
      found.st_size,
      bytes);
  // What was written after the mark is written again.
  if (::ftruncate(fd.get(), bytes) != 0 ||
      ::lseek(fd.get(), bytes, SEEK_SET) != bytes) {
    runtime::detail::fail_on("write", path, errno);
  }
}

void DocumentWriter::Part::write() {
  size_t done = 0;
  while (done < buffer.size()) {
    const ssize_t count =
        ::write(fd.get(), buffer.data() + done, buffer.size() - done);
    if (count < 0 && errno != EINTR) {
      runtime::detail::fail_on("write", path, errno);
    }
    done += count > 0 ? static_cast<size_t>(count) : 0;
  }
  buffer.clear();
}

void DocumentWriter::Part::sync() {
  write();
  if (::fsync(fd.get()) != 0) {
    runtime::detail::fail_on("write", path, errno);
  }
}

DocumentWriter::DocumentWriter(
    fs::path prefix,
    TokenType type,
    const WrittenDocuments& mark)
    : prefix_(std::move(prefix)), type_(type), written_(mark) {
  TESSERA_CHECK(
      type == TokenType::kUint16 || type == TokenType::kInt32,
      "tokens are written as uint16 or int32, not as {}",
      name_of(type));
  tokens_.path = prefix_.string() + ".bin.part";
  lengths_.path = prefix_.string() + ".idx.part";
  if (mark.documents > 0 && !fs::exists(tokens_.path) && fs::exists(bin())) {
    fs::rename(bin(), tokens_.path); // interrupted after finish()
  }
  tokens_.open(mark.tokens * bytes_of(type));
  lengths_.open(mark.documents * static_cast<int64_t>(sizeof(int32_t)));
}

void DocumentWriter::add(std::span<const int64_t> tokens) {
  TESSERA_CHECK(
      tokens.size() <= std::numeric_limits<int32_t>::max(),
      "document {} has {} tokens; Megatron's format has at most 2147483647: divide it",
      written_.documents,
      tokens.size());
  const int64_t bound = type_ == TokenType::kUint16
                            ? std::numeric_limits<uint16_t>::max()
                            : std::numeric_limits<int32_t>::max();
  for (const int64_t token : tokens) {
    TESSERA_CHECK(
        token >= 0 && token <= bound,
        "token {} of document {} does not fit into {}",
        token,
        written_.documents,
        name_of(type_));
    if (type_ == TokenType::kUint16) {
      append_value(tokens_.buffer, static_cast<uint16_t>(token));
    } else {
      append_value(tokens_.buffer, static_cast<int32_t>(token));
    }
  }
  append_value(lengths_.buffer, static_cast<int32_t>(tokens.size()));
  for (Part* part : {&tokens_, &lengths_}) {
    if (part->buffer.size() >= kBufferBytes) {
      part->write();
    }
  }
  ++written_.documents;
  written_.tokens += static_cast<int64_t>(tokens.size());
}

WrittenDocuments DocumentWriter::sync() {
  tokens_.sync();
  lengths_.sync();
  return written_;
}

void DocumentWriter::finish() {
  sync();
  std::vector<int32_t> lengths(static_cast<size_t>(written_.documents));
  std::ifstream file(lengths_.path, std::ios::binary);
  file.read(
      reinterpret_cast<char*>(lengths.data()),
      static_cast<std::streamsize>(lengths.size() * sizeof(int32_t)));
  TESSERA_CHECK(
      lengths.empty() || file.good(),
      "cannot read '{}'",
      lengths_.path.string());
  write_megatron_index(idx(), type_, lengths);
  std::error_code code;
  fs::rename(tokens_.path, bin(), code);
  TESSERA_CHECK(!code, "cannot write '{}': {}", bin().string(), code.message());
  runtime::detail::sync_folder(bin().parent_path());
}

void DocumentWriter::remove_parts() {
  std::error_code ignored;
  fs::remove(tokens_.path, ignored);
  fs::remove(lengths_.path, ignored);
}

} // namespace tessera::zoo
