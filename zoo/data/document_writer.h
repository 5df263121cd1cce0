// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DocumentWriter` writes documents of tokens as a data set of Megatron's
// format, and goes on with what an interrupted process has written.

#include "tessera/runtime/core/unique_fd.h"
#include "tessera/zoo/data/token_file.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace tessera::zoo {

/// What has been written durably.
struct WrittenDocuments {
  int64_t documents = 0;
  int64_t tokens = 0;
};

/// PREFIX.bin and PREFIX.idx appear when they are complete; until then there
/// are PREFIX.bin.part, the tokens, and PREFIX.idx.part, the int32 lengths of
/// the documents. Every operation may block on the disk.
class DocumentWriter {
 public:
  /// @param mark where to go on; the default starts anew.
  /// @throws tessera::Error naming a file that cannot be written, or that has
  ///     less than the mark says.
  DocumentWriter(
      std::filesystem::path prefix,
      TokenType type,
      const WrittenDocuments& mark = {});

  /// @throws tessera::Error on a token outside of the type, and on a document
  ///     of 2^31 tokens or more.
  void add(std::span<const int64_t> tokens);

  /// Makes durable what was added.
  WrittenDocuments sync();

  /// Completes PREFIX.bin and PREFIX.idx. A writer with the mark of everything
  /// can do it again.
  void finish();

  /// Removes PREFIX.bin.part and PREFIX.idx.part, without which the writer
  /// cannot go on.
  void remove_parts();

  std::filesystem::path bin() const {
    return prefix_.string() + ".bin";
  }
  std::filesystem::path idx() const {
    return prefix_.string() + ".idx";
  }

 private:
  /// A file that is appended to.
  struct Part {
    std::filesystem::path path;
    runtime::UniqueFd fd;
    std::string buffer;

    void open(int64_t bytes);
    void write();
    void sync();
  };

  std::filesystem::path prefix_;
  TokenType type_;
  WrittenDocuments written_;
  Part tokens_;
  Part lengths_;
};

} // namespace tessera::zoo
