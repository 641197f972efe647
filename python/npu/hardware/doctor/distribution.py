"""The commands that install or change something, per distribution.

Package names: docs/hardware.md lists them with their state.
"""

from __future__ import annotations

from pathlib import Path

from npu.hardware.doctor.parse import Distribution, os_release
from npu.hardware.doctor.result import Fix

OS_RELEASE = Path("/etc/os-release")
UBUNTU_WITH_PACKAGES = (26, 4)  # the first release with XRT for the NPU in its archive
UBUNTU_WITH_PYXRT = (26, 10)
DEBIAN_WITH_PACKAGES = (13,)  # in its backports
FEDORA_WITH_PACKAGES = (46,)  # Rawhide in 2026-11
EPEL_WITH_PACKAGES = (10, 4)
_PPA = "sudo add-apt-repository ppa:amd-team/xrt"
_COPR_PAGE = "https://copr.fedorainfracloud.org/coprs/abn/amd-npu/repo"
SOURCE = "git clone --recursive https://github.com/amd/xdna-driver"
RELOAD = "sudo modprobe -r amdxdna && sudo modprobe amdxdna"
REBOOT = "sudo reboot"


def packaged(system: Distribution) -> bool:
    """Whether the distribution's own archive has XRT with the NPU plugin."""
    first = {
        "ubuntu": UBUNTU_WITH_PACKAGES, "debian": DEBIAN_WITH_PACKAGES,
        "fedora": FEDORA_WITH_PACKAGES, "rhel": EPEL_WITH_PACKAGES, "arch": (),
    }  # fmt: skip
    return system.family in first and system.version >= first[system.family]


def install_xrt(system: Distribution) -> tuple[str, ...]:
    """XRT and its NPU plugin."""
    if system.family == "ubuntu":
        if packaged(system):
            return ("sudo apt install libxrt2 libxrt-npu2",)
        return (_PPA, "sudo apt install libxrt2 libxrt-npu2 amdxdna-dkms")
    if system.family == "debian" and packaged(system):
        return ("sudo apt install -t trixie-backports libxrt-npu2",)
    if system.family == "fedora":
        return (*(() if packaged(system) else _copr(system)), *_rpm(system, "xrt"))
    if system.family == "rhel" and packaged(system):
        return ("sudo dnf install epel-release", "sudo dnf install xrt")
    if system.family == "arch":
        return ("sudo pacman -S xrt xrt-plugin-amdxdna",)
    return (SOURCE, "less xdna-driver/README.md")


def _copr(system: Distribution) -> tuple[str, ...]:
    """A repository with XRT's plugin for NPUs, for Fedora without a package of it."""
    if not system.image:
        return ("sudo dnf copr enable abn/amd-npu",)
    chroot = f"fedora-{system.version[0] if system.version else '$(rpm -E %fedora)'}"
    page = f"{_COPR_PAGE}/{chroot}/abn-amd-npu-{chroot}.repo"
    return (f"sudo curl -fLo /etc/yum.repos.d/abn-amd-npu.repo \\\n  {page}",)


def _apt(system: Distribution, packages: str) -> tuple[str, ...]:
    """Packages of XRT where apt has them; () elsewhere."""
    if system.family == "ubuntu":
        command = f"sudo apt install {packages}"
        return (command,) if packaged(system) else (_PPA, command)
    if system.family == "debian" and packaged(system):
        return (f"sudo apt install -t trixie-backports {packages}",)
    return ()


def _rpm(system: Distribution, package: str) -> tuple[str, ...]:
    if system.image:
        return (f"rpm-ostree install {package}", REBOOT)
    return (f"sudo dnf install {package}",)


def _upgrade(system: Distribution, package: str = "") -> tuple[str, ...]:
    """A package of Fedora, or all; an image as a whole."""
    if system.image:
        return ("rpm-ostree upgrade   # or back: rpm-ostree rollback", REBOOT)
    return (f"sudo dnf upgrade --refresh {package}".strip(), REBOOT)


def install_xrt_tools(system: Distribution) -> tuple[str, ...]:
    """xrt-smi, where it is a package of its own."""
    return _apt(system, "libxrt-utils libxrt-utils-npu") or install_xrt(system)


def install_xclbinutil(system: Distribution) -> tuple[str, ...]:
    """xclbinutil of XRT's tools; no NPU is needed for it."""
    if system.family == "arch":
        return ("sudo pacman -S xrt",)
    return _apt(system, "libxrt-utils") or install_xrt(system)


def install_headers(system: Distribution) -> tuple[str, ...]:
    """XRT's headers, a compiler and CMake: what `npu build --xrt` builds with."""
    if commands := _apt(system, "libxrt-dev g++ cmake"):
        return commands
    if system.family == "arch":
        return ("sudo pacman -S xrt gcc cmake",)
    packages = "xrt-devel gcc-c++ cmake"
    if system.family == "fedora":
        return (*(() if packaged(system) else _copr(system)), *_rpm(system, packages))
    if system.family == "rhel" and packaged(system):
        return ("sudo dnf install epel-release", f"sudo dnf install {packages}")
    return (SOURCE, "less xdna-driver/README.md")


def present() -> Distribution:
    """Of this machine."""
    try:
        return os_release(OS_RELEASE.read_text(errors="replace"))
    except OSError:
        return os_release("")


def in_words(system: Distribution, commands: tuple[str, ...]) -> str:
    """Commands that install a part of XRT, within a sentence."""
    if commands[0] == SOURCE:
        return f"XRT from source (`{SOURCE}`; there is no package for {system.name})"
    return f"`{' && '.join(commands)}` ({system.name})"


def install_pyxrt(system: Distribution) -> tuple[str, ...]:
    """The Python bindings of XRT."""
    if system.family == "ubuntu" and not packaged(system):
        return (_PPA, "sudo apt install python3-xrt")
    if system.family == "ubuntu" and system.version >= UBUNTU_WITH_PYXRT:
        return ("sudo apt install python3-xrt",)
    if system.family in ("ubuntu", "debian"):
        return (SOURCE, "less xdna-driver/README.md")
    return install_xrt(system)


def _hwe_kernel(system: Distribution) -> tuple[str, ...]:
    """Ubuntu's newest kernel for a release with long support, which the module is built for."""
    if system.version not in ((22, 4), (24, 4)):
        return ()
    return (f"sudo apt install linux-generic-hwe-{system.version[0]}.04",)


def install_driver(system: Distribution) -> tuple[str, ...]:
    """A kernel with a current amdxdna, or the driver as an out-of-tree module."""
    if system.family == "ubuntu":
        if packaged(system):
            return ("sudo apt update && sudo apt full-upgrade", REBOOT)
        return (*_hwe_kernel(system), _PPA, "sudo apt install amdxdna-dkms", REBOOT)
    if system.family == "debian" and packaged(system):
        return ("sudo apt install -t trixie-backports linux-image-amd64", REBOOT)
    if system.family == "fedora":
        return _upgrade(system)
    if system.family == "arch":
        return ("sudo pacman -Syu", REBOOT)
    return (SOURCE, "less xdna-driver/README.md")


def rebuild_module(system: Distribution, *, dkms: bool) -> tuple[str, ...]:
    """The module, where it is built on this machine, and the initramfs that may hold an old one."""
    if system.image:
        return _upgrade(system)
    initramfs = {
        "fedora": "sudo dracut -f", "rhel": "sudo dracut -f", "arch": "sudo mkinitcpio -P",
    }.get(system.family, "sudo update-initramfs -u")  # fmt: skip
    return (*(["sudo dkms autoinstall"] if dkms else []), initramfs, REBOOT)


def dkms_driver(system: Distribution) -> tuple[str, ...]:
    """A newer driver: as an out-of-tree module where there is a package of it."""
    if system.family == "fedora" and not system.image:
        return (*_copr(system), *_rpm(system, "amdxdna-dkms"), REBOOT)
    if system.family == "arch":
        return ("yay -S amdxdna-dkms   # from the AUR", REBOOT)
    return install_driver(system)


def install_firmware(system: Distribution) -> tuple[str, ...]:
    """The firmware files, current."""
    if system.family in ("fedora", "rhel"):
        return _upgrade(system, "linux-firmware")
    commands = {
        "ubuntu": "sudo apt update && sudo apt install linux-firmware",
        "debian": "sudo apt install -t trixie-backports firmware-linux-nonfree",
        "arch": "sudo pacman -Syu linux-firmware",
    }
    return (commands.get(system.family, "# install a current linux-firmware"), REBOOT)


def boot_words(system: Distribution, *, remove: str = "", add: str = "") -> tuple[str, ...]:
    """Removes words from the kernel's command line, or adds some."""
    if system.image:
        words = [f"--delete-if-present={word}" for word in remove.split()]
        words += [f"--append-if-missing={word}" for word in add.split()]
        return (f"rpm-ostree kargs {' '.join(words)}", REBOOT)
    if system.family in ("fedora", "rhel"):
        change = f'--remove-args="{remove}"' if remove else f'--args="{add}"'
        return (f"sudo grubby --update-kernel=ALL {change}", REBOOT)
    update = "sudo update-grub"
    if system.family not in ("ubuntu", "debian"):
        update = "sudo grub-mkconfig -o /boot/grub/grub.cfg   # or your boot loader's"
    change = f"remove {remove}" if remove else f"add {add}"
    return (f"sudoedit /etc/default/grub   # {change}", update, REBOOT)


def unlimited_memory_lock(system: Distribution) -> tuple[str, ...]:
    """For logins through PAM and, where sessions start in systemd, for those too."""
    line = "echo '@render - memlock unlimited' | \\\n  sudo tee /etc/security/limits.d/90-npu.conf"
    if system.family not in ("fedora", "rhel"):
        return (line,)
    folder = "/etc/systemd/system/user@.service.d"
    unit = f"printf '[Service]\\nLimitMEMLOCK=infinity\\n' | \\\n  sudo tee {folder}/90-npu.conf"
    return (line, f"sudo mkdir -p {folder}", unit)


EMULATED = "The emulated NPU works on any machine: every example and `npu generate` run on it."


def no_hardware(text: str, *commands: str) -> Fix:
    """Of a machine where nothing can be repaired."""
    return Fix(
        f"{text} {EMULATED}", commands or ("npu devices", 'npu generate -p "What is 2 + 3?"')
    )
