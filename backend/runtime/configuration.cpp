// Reads the serialised form of a configuration (runtime/configuration.h): text lines, then the
// static TXN stream. Everything is checked here, once, so that what loads a configuration can rely
// on it.
#include "runtime/configuration.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <set>
#include <tuple>

#include "arch/control_packet.h"
#include "error.h"
#include "runtime/overlay.h"
#include "stream/register_name.h"
#include "stream/txn.h"
#include "text.h"

namespace npu {

namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr size_t kMaxLine = 4096;
constexpr size_t kMaxName = 128;
constexpr size_t kMaxEntries = 1 << 16;  // ports, RTPs, resources, ... each
constexpr std::string_view kMagic = "npu-config 1";
constexpr int kImageStep = 4 * int(arch::kMaxControlWords);  // of an overlay

using Words = std::vector<std::string_view>;

bool is_hex_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes)
      : bytes_(bytes), rest_(reinterpret_cast<const char*>(bytes.data()), bytes.size()) {}

  Configuration read() {
    if (bytes_.size() > kMaxBytes) {
      fail(ErrorKind::kFormat, "[Configuration::parse] %zu bytes; at most %zu are read",
           bytes_.size(), kMaxBytes);
    }
    if (next_line() != kMagic) {
      bad(strf("expected \"%.*s\"; this is not a configuration, or one of another version",
               static_cast<int>(kMagic.size()), kMagic.data()));
    }
    while (true) {
      const std::string_view line = next_line();
      const Words words = split_words(line);
      if (words.empty()) continue;
      if (words[0] == "txn") {
        static_stream(words);
        return std::move(result_);
      }
      entry(words);
    }
  }

 private:
  [[noreturn]] void bad(const std::string& cause) const {
    fail(ErrorKind::kFormat, "[Configuration::parse] line %d: %s", line_, cause.c_str());
  }

  std::string_view next_line() {
    ++line_;
    if (rest_.empty()) bad("the file ends before \"txn BYTES\"");
    const size_t end = rest_.substr(0, kMaxLine + 1).find('\n');
    if (end == std::string_view::npos) {
      bad(rest_.size() > kMaxLine ? strf("longer than %zu bytes", kMaxLine)
                                  : "the file ends inside a line, before \"txn BYTES\"");
    }
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    for (const char c : line) {
      if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F) {
        bad(strf("control byte 0x%02x in the text part", static_cast<unsigned>(c)));
      }
    }
    return line;
  }

  void expect(const Words& words, size_t count, const char* form) const {
    if (words.size() != count) {
      bad(strf("expected \"%s\", found %zu words", form, words.size()));
    }
  }

  std::string name(std::string_view word) const {
    if (word.size() > kMaxName) bad(strf("a name longer than %zu bytes", kMaxName));
    return std::string(word);
  }

  int64_t integer(std::string_view word, const char* what, int64_t low, int64_t high) const {
    const std::optional<int64_t> value = parse_integer(word);
    if (!value) bad(strf("%s %s is not an integer", what, quoted(word).c_str()));
    if (*value < low || *value > high) {
      bad(strf("%s %lld is out of range %lld..%lld", what, static_cast<long long>(*value),
               static_cast<long long>(low), static_cast<long long>(high)));
    }
    return *value;
  }

  int col(std::string_view word) const {
    return static_cast<int>(
        integer(word, "column", 0, arch::device_geometry(result_.generation).columns - 1));
  }
  int row(std::string_view word, int first) const {
    return static_cast<int>(integer(word, "row", first, arch::kRows - 1));
  }

  // Fails if `key` was inserted before, or there are too many entries.
  template <typename Key>
  void once(std::set<Key>& seen, Key key, const char* what) const {
    if (!seen.insert(std::move(key)).second) bad(strf("%s is given twice", what));
    if (seen.size() > kMaxEntries) bad(strf("more than %zu entries of this kind", kMaxEntries));
  }

  void require_head() const {
    for (const char* key : {"name", "generation", "source"}) {
      if (!head_.contains(key)) bad(strf("\"%s\" is missing; it comes before this line", key));
    }
  }

  void entry(const Words& words) {
    const std::string_view key = words[0];
    if (key == "name" || key == "generation" || key == "source") return head(words);
    require_head();
    if (key == "param") return param(words);
    if (key == "port") return port(words);
    if (key == "rtp") return rtp(words);
    if (key == "rtplock") return rtp_lock(words);
    if (key == "resource") return resource(words);
    if (key == "core") return core(words);
    if (key == "overlay") return overlay(words);
    bad(
        strf("unknown entry %s; use name, generation, source, param, port, rtp, rtplock, "
             "resource, core, overlay or txn",
             quoted(key).c_str()));
  }

  // Key and value pairs, one or several a line.
  void head(const Words& words) {
    if (words.size() % 2 != 0) bad("expected pairs of name, generation, source and their values");
    for (size_t i = 0; i < words.size(); i += 2) {
      const std::string_view key = words[i], value = words[i + 1];
      if (key == "name") {
        result_.name = name(value);
      } else if (key == "source") {
        result_.source = name(value);
      } else if (key == "generation") {
        if (value != "npu1" && value != "npu2") {
          bad(strf("generation %s; use npu1 or npu2", quoted(value).c_str()));
        }
        result_.generation = arch::device_geometry(value).generation;
      } else {
        bad(strf("expected name, generation or source, found %s", quoted(key).c_str()));
      }
      once(head_, std::string(key), std::string(key).c_str());
    }
  }

  void param(const Words& words) {
    expect(words, 3, "param NAME INTEGER");
    const int64_t value = integer(words[2], "parameter", std::numeric_limits<int64_t>::min(),
                                  std::numeric_limits<int64_t>::max());
    if (!result_.params.emplace(name(words[1]), value).second) {
      bad(strf("parameter %s is given twice", quoted(words[1]).c_str()));
    }
    if (result_.params.size() > kMaxEntries) bad("too many parameters");
  }

  void port(const Words& words) {
    if (words.size() != 6) expect(words, 5, "port NAME COL s2mm|mm2s CHANNEL [ID]");
    Configuration::Port p;
    p.name = name(words[1]);
    p.col = col(words[2]);
    if (words[3] != "s2mm" && words[3] != "mm2s") {
      bad(strf("direction %s; use s2mm or mm2s", quoted(words[3]).c_str()));
    }
    p.direction = words[3] == "s2mm" ? arch::Direction::kS2MM : arch::Direction::kMM2S;
    const int channels = arch::tile_geometry(arch::TileKind::kShim).channels;
    p.channel = static_cast<int>(integer(words[4], "channel", 0, channels - 1));
    if (words.size() == 6) {
      if (p.direction != arch::Direction::kMM2S) bad("only mm2s ports send packets");
      p.packet = static_cast<uint32_t>(integer(words[5], "packet id", 0, 31));
    }
    once(port_names_, p.name, "this port name");
    take_channel(p);
    result_.ports.push_back(std::move(p));
  }

  // A channel is one port's, or that of packets with different ids.
  void take_channel(const Configuration::Port& p) {
    const uint32_t ids = p.packet ? uint32_t{1} << *p.packet : ~uint32_t{0};
    uint32_t& taken = port_packets_[{p.col, static_cast<int>(p.direction), p.channel}];
    if ((taken & ids) != 0) bad("this shim channel is given twice");
    taken |= ids;
  }

  void rtp(const Words& words) {
    expect(words, 5, "rtp NAME COL ROW ADDRESS");
    const int64_t memory = arch::tile_geometry(arch::TileKind::kCore).memory_bytes;
    Configuration::Rtp r;
    r.name = name(words[1]);
    r.col = col(words[2]);
    r.row = row(words[3], 1);
    const bool core = r.row >= arch::kFirstCoreRow;
    const int64_t end = core ? memory : int64_t{arch::kOffsetMask} + 1;
    r.address = static_cast<uint32_t>(integer(words[4], "address", 0, end - 4));
    if (r.address % 4 != 0) bad(strf("address %u is not a multiple of 4", r.address));
    if (!core) memtile_register(r.address);
    // One name may stand for the same parameter of several cores.
    once(rtp_names_, std::make_tuple(r.name, r.col, r.row), "this RTP of this core");
    once(rtp_words_, std::make_tuple(r.col, r.row, static_cast<int>(r.address)), "this RTP word");
    result_.rtps.push_back(std::move(r));
  }

  // What a stream may change of a memtile: which tasks its channels run, locks, and how long BDs
  // are and how they go on from one execution to the next.
  void memtile_register(uint32_t offset) const {
    using Area = stream::RegisterPlace::Area;
    constexpr uint32_t kLength = 0, kIterations = 24;  // bytes of a memtile's BD
    const stream::RegisterPlace place = stream::locate_register(arch::TileKind::kMem, offset);
    if ((place.area == Area::kLock || place.area == Area::kQueue) && place.within == 0) return;
    if (place.area == Area::kBd && (place.within == kLength || place.within == kIterations)) return;
    bad(
        strf("address 0x%x of a memtile is neither a lock nor the queue of a channel, nor the "
             "length or the iterations of a BD",
             offset));
  }

  void rtp_lock(const Words& words) {
    expect(words, 4, "rtplock COL ROW LOCK");
    Configuration::RtpLock l;
    l.col = col(words[1]);
    l.row = row(words[2], arch::kFirstCoreRow);
    const int locks = arch::tile_geometry(arch::TileKind::kCore).locks;
    l.lock = static_cast<int>(integer(words[3], "lock", 0, locks - 1));
    once(rtp_locks_, std::make_tuple(l.col, l.row, l.lock), "this RTP lock");
    result_.rtp_locks.push_back(l);
  }

  void resource(const Words& words) {
    expect(words, 6, "resource COL ROW KIND USED LIMIT");
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    Configuration::Resource r;
    r.col = col(words[1]);
    r.row = row(words[2], 0);
    r.kind = name(words[3]);
    r.limit = integer(words[5], "limit", 0, kMax);
    // An estimate may exceed what there is (designs/lowering/program_memory.py).
    r.used = integer(words[4], "use", 0, r.kind == "program" ? kMax : r.limit);
    once(resources_, std::make_tuple(r.kind, r.col, r.row), "this resource of this tile");
    result_.resources.push_back(std::move(r));
  }

  void core(const Words& words) {
    expect(words, 3, "core COL ROW");
    Configuration::Core c;
    c.col = col(words[1]);
    c.row = row(words[2], arch::kFirstCoreRow);
    once(cores_, std::make_tuple(c.col, c.row), "this core");
    c.program = program("core", strf("core(%d,%d)", c.col, c.row));
    result_.cores.push_back(std::move(c));
  }

  void overlay(const Words& words) {
    expect(words, 4, "overlay NAME BYTES COUNTERS");
    const int64_t memory = arch::tile_geometry(arch::TileKind::kCore).memory_bytes;
    Configuration::Overlay o;
    o.name = name(words[1]);
    if (o.name.empty()) bad("an overlay needs a name");
    once(overlays_, o.name, "this overlay");
    o.bytes = static_cast<uint32_t>(
        integer(words[2], "image size", kImageStep, int(kProgramMemoryBytes)));
    if (o.bytes % kImageStep != 0) {
      bad(strf("image size %u is not a multiple of %d", o.bytes, kImageStep));
    }
    o.counters = static_cast<uint32_t>(integer(words[3], "counter address", 0, memory - 4));
    if (o.counters % 4 != 0) bad(strf("counter address %u is not a multiple of 4", o.counters));
    const std::string_view hash = std::string_view(result_.source).substr(0, 8);
    if (hash.size() < 8 || !std::all_of(hash.begin(), hash.end(), is_hex_digit)) {
      bad(
          strf("an overlay's image names the source, which must begin with 8 hexadecimal digits; "
               "it is %s",
               quoted(result_.source).c_str()));
    }
    const int line = line_;
    o.program = program("overlay", "overlay " + quoted(o.name));
    if (o.counters + 4 * int64_t{o.program.counters} > memory) {
      fail(ErrorKind::kFormat,
           "[Configuration::parse] line %d: %d slot counters at address %u reach past the %lld "
           "bytes of a core's data memory",
           line, o.program.counters, o.counters, static_cast<long long>(memory));
    }
    result_.overlays.push_back(std::move(o));
  }

  // The lines from here on up to "end" + key.
  Program program(const std::string& key, const std::string& where) {
    const int first_line = line_ + 1;
    const char* begin = rest_.data();
    const char* end = begin;
    while (true) {
      const Words line = split_words(next_line());
      if (line.size() == 1 && line[0] == "end" + key) break;
      if (!line.empty() && (line[0] == "core" || line[0] == "overlay" || line[0] == "txn")) {
        bad(strf("%s inside a program; end%s is missing", quoted(line[0]).c_str(), key.c_str()));
      }
      end = rest_.data();
    }
    return parse_program(std::string_view(begin, static_cast<size_t>(end - begin)), where,
                         first_line);
  }

  void static_stream(const Words& words) {
    require_head();
    expect(words, 2, "txn BYTES");
    const int64_t size = integer(words[1], "size", 0, static_cast<int64_t>(kMaxBytes));
    if (static_cast<size_t>(size) != rest_.size()) {
      bad(strf("txn announces %lld bytes, %zu follow", static_cast<long long>(size), rest_.size()));
    }
    const std::span<const std::byte> tail = bytes_.last(rest_.size());
    result_.txn.assign(tail.begin(), tail.end());
    const int generation = stream_generation();
    if (generation != static_cast<int>(result_.generation)) {
      bad(strf("the configuration is for %s, its txn stream for generation code %d",
               arch::device_geometry(result_.generation).name, generation));
    }
  }

  int stream_generation() const {
    try {
      return stream::Stream::parse(result_.txn).header().generation;
    } catch (const Error& error) {
      bad(strf("the txn stream does not parse: %s", error.what()));
    }
  }

  std::span<const std::byte> bytes_;
  std::string_view rest_;  // not read yet
  int line_ = 0;
  Configuration result_;
  std::set<std::string> head_, port_names_, overlays_;
  std::map<std::tuple<int, int, int>, uint32_t> port_packets_;  // by channel, a bit per id
  std::set<std::tuple<int, int, int>> rtp_words_, rtp_locks_;
  std::set<std::tuple<std::string, int, int>> rtp_names_, resources_;
  std::set<std::tuple<int, int>> cores_;
};

}  // namespace

Configuration Configuration::parse(std::span<const std::byte> bytes) {
  static std::atomic<uint64_t> next_id{1};
  Configuration configuration = Reader(bytes).read();
  configuration.id = next_id++;
  return configuration;
}

std::string Configuration::artefact() const {
  return strf("%s-%s-%s", name.c_str(), arch::device_geometry(generation).name,
              source.substr(0, 16).c_str());
}

int64_t Configuration::param(const std::string& key) const {
  const auto found = params.find(key);
  if (found == params.end()) {
    fail(ErrorKind::kFormat, "[Configuration::param] configuration %s has no parameter %s",
         quoted(name).c_str(), quoted(key).c_str());
  }
  return found->second;
}

int64_t Configuration::param(const std::string& key, int64_t min, int64_t max) const {
  const int64_t value = param(key);
  if (value < min || value > max) {
    fail(ErrorKind::kFormat,
         "[Configuration::param] configuration \"%s\" has %s = %lld, must be %lld..%lld; lower the "
         "design again",
         name.c_str(), key.c_str(), static_cast<long long>(value), static_cast<long long>(min),
         static_cast<long long>(max));
  }
  return value;
}

const Configuration::Port& Configuration::port(const std::string& key) const {
  const auto found =
      std::find_if(ports.begin(), ports.end(), [&](const Port& p) { return p.name == key; });
  if (found == ports.end()) {
    fail(ErrorKind::kFormat, "[Configuration::port] configuration %s has no port %s",
         quoted(name).c_str(), quoted(key).c_str());
  }
  return *found;
}

}  // namespace npu
