// Aliases of a core's memory. A tile of data that a broadcast delivers to several cores is held
// once, in a shared block; words that a shim reads from a read-only argument straight into cores
// stay in the argument. The range of each core's memory that was to receive them becomes an alias
// of that source, with copy-on-write: kernels that only read the range are given the source itself,
// and every other access flushes the alias first, that is, copies the data into the core's memory.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "aligned.h"
#include "kernels/call.h"
#include "kernels/host/packed_operand.h"

namespace npu::emulator {

class BlockPool;

// Data that several cores read, and its packed form: the first core that multiplies it packs it for
// all.
struct SharedBlock {
  AlignedBytes data;
  PackedOperand packed;
  BlockPool* pool = nullptr;
  std::atomic<int> users = 0;
};

// Free blocks are reused last in, first out: the last one is still in the CPU's cache. References
// to a broadcast block end on whichever thread runs their column.
class BlockPool {
 public:
  SharedBlock* take(size_t bytes);
  void give_back(SharedBlock* block);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<SharedBlock>> all_;
  std::vector<SharedBlock*> free_;
};

// A reference to a block; the last one gives it back to its pool.
class BlockRef {
 public:
  BlockRef() = default;
  explicit BlockRef(SharedBlock* block) : block_(block) {
    if (block_) ++block_->users;
  }
  BlockRef(const BlockRef& other) : BlockRef(other.block_) {}
  BlockRef(BlockRef&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~BlockRef() {
    if (block_ && --block_->users == 0) block_->pool->give_back(block_);
  }
  SharedBlock* operator->() const { return block_; }
  explicit operator bool() const { return block_ != nullptr; }

 private:
  SharedBlock* block_ = nullptr;
};

// Where the data of an aliased range lie.
struct AliasSource {
  std::byte* argument = nullptr;  // in an argument of the run; the block, if any, is for packing
  BlockRef block;
  std::byte* data() const { return argument ? argument : block->data.data(); }
  explicit operator bool() const { return argument || block; }
};

// The aliases of one core's memory; they never overlap.
class AliasTable {
 public:
  explicit AliasTable(AlignedBytes& memory) : memory_(memory) {}

  // Makes [address, address + bytes) an alias of `source`, which holds that many bytes.
  void add(uint64_t address, uint64_t bytes, AliasSource source);
  // Brings the memory in [address, address + bytes) up to date; every access calls this
  // first. True if that removed an alias.
  bool flush(uint64_t address, uint64_t bytes) {
    if ((pages(address, bytes) & aliased_pages_) == 0) return false;
    for (const Alias& alias : aliases_) {
      if (alias.overlaps(address, bytes)) return flush_overlapping(address, bytes);
    }
    return false;
  }
  void flush_all() { flush(0, UINT64_MAX); }
  // Flushes the aliases of arguments, when the run that they belong to ends.
  void flush_arguments();
  // Forgets all aliases without copying.
  void clear();

  // Before a kernel call: operands that the call only reads and that are aliased are redirected to
  // their source, everything else it accesses is flushed. Null `kernel`: it may access all memory.
  void redirect(std::span<KernelArgument> arguments, const kernels::Declaration* kernel);
  // Keeps the blocks of the redirected operands until unpin(), whatever happens to the aliases: for
  // a call that does not run at once.
  void pin();
  void unpin() { pinned_.clear(); }

 private:
  struct Alias {
    uint64_t address, bytes;
    AliasSource source;
    bool overlaps(uint64_t from, uint64_t count) const {
      return from < address + bytes && (address < from || address - from < count);
    }
  };
  struct Redirection {
    const Alias* alias;
    size_t operand;
  };
  // The alias that begins at `address`, or null; `find` wants one that covers `bytes`.
  Alias* starting_at(uint64_t address);
  const Alias* find(uint64_t address, uint64_t bytes);
  // Which alias begins in which page, after some were added or removed.
  void index();
  bool find_redirections(std::span<const KernelArgument> arguments,
                         const kernels::OperandUses& uses);
  template <typename Predicate>
  bool flush_if(const Predicate& predicate);
  bool flush_overlapping(uint64_t address, uint64_t bytes);

  // A bit per page that an alias may touch; pages beyond share the last bit.
  static constexpr uint64_t kPageBytes = 1024, kPages = 64;
  static uint64_t pages(uint64_t address, uint64_t bytes) {
    constexpr uint64_t kLast = kPages - 1;
    const uint64_t end = bytes > UINT64_MAX - address ? UINT64_MAX : address + bytes - 1;
    const uint64_t from = std::min(address / kPageBytes, kLast);
    const uint64_t to = std::min(end / kPageBytes, kLast);
    return (UINT64_MAX << from) & (UINT64_MAX >> (kLast - to));
  }

  AlignedBytes& memory_;
  std::vector<Alias> aliases_;
  uint64_t aliased_pages_ = 0;
  // The number of an alias that begins in each page: most calls find theirs at once.
  std::array<uint8_t, kPages> begins_{};
  std::vector<Redirection> redirections_;  // of the next call
  std::vector<BlockRef> pinned_;
};

}  // namespace npu::emulator
