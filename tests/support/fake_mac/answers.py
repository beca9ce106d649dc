"""What the tools of a Mac mini (M4 Pro, 64 GB, macOS 26.2) print, as far as Chorus asks them."""

from __future__ import annotations

_PAGES = {
    "Pages free": 1_270_114,
    "Pages active": 1_010_871,
    "Pages inactive": 995_206,
    "Pages speculative": 14_560,
    "Pages throttled": 0,
    "Pages wired down": 221_334,
    "Pages purgeable": 60_127,
    '"Translation faults"': 401_260_118,
    "Pages copy-on-write": 12_001_633,
    "Pages zero filled": 210_448_197,
    "Pages reactivated": 5_220_031,
    "Pages purged": 1_644_220,
    "File-backed pages": 701_884,
    "Anonymous pages": 1_318_753,
    "Pages stored in compressor": 512_003,
    "Pages occupied by compressor": 210_556,
    "Decompressions": 1_733_120,
    "Compressions": 3_902_551,
    "Pageins": 9_022_174,
    "Pageouts": 20_388,
    "Swapins": 0,
    "Swapouts": 0,
}

_HARDWARE_PORTS = """
Hardware Port: Ethernet
Device: en0
Ethernet Address: 1c:f6:4c:00:00:01

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 36:a4:c8:00:00:00

Hardware Port: Wi-Fi
Device: en1
Ethernet Address: 1c:f6:4c:00:00:02

Hardware Port: Thunderbolt 1
Device: en2
Ethernet Address: 36:a4:c8:00:00:01

Hardware Port: Thunderbolt 2
Device: en3
Ethernet Address: 36:a4:c8:00:00:02

VLAN Configurations
===================
"""

_IFCONFIG = """\
lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\toptions=1203<RXCSUM,TXCSUM,TXSTATUS,SW_TIMESTAMP>
\tinet 127.0.0.1 netmask 0xff000000
\tinet6 ::1 prefixlen 128
\tnd6 options=201<PERFORMNUD,DAD>
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\toptions=567<RXCSUM,TXCSUM,VLAN_MTU,TSO4,TSO6,AV,CHANNEL_IO>
\tether 1c:f6:4c:00:00:01
\tinet 192.168.1.20 netmask 0xffffff00 broadcast 192.168.1.255
\tmedia: autoselect (10Gbase-T <full-duplex,flow-control>)
\tstatus: active
en2: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\toptions=460<TSO4,TSO6,CHANNEL_IO>
\tether 36:a4:c8:00:00:01
\tinet 169.254.12.7 netmask 0xffff0000 broadcast 169.254.255.255
\tmedia: autoselect <full-duplex>
\tstatus: active
en3: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\toptions=460<TSO4,TSO6,CHANNEL_IO>
\tether 36:a4:c8:00:00:02
\tmedia: autoselect <full-duplex>
\tstatus: inactive
bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\toptions=63<RXCSUM,TXCSUM,TSO4,TSO6>
\tether 36:a4:c8:00:00:00
\tConfiguration:
\t\tid 0:0:0:0:0:0 priority 0 hellotime 0 fwddelay 0
\tmember: en3 flags=3<LEARNING,DISCOVER>
\t        ifmaxaddr 0 port 9 priority 0 path cost 0
\tmedia: <unknown type>
\tstatus: inactive
"""

_DEVICES = """\
    device          \t   node GUID
    ------          \t----------------
    rdma_en2        \t36a4c80000000001
    rdma_en3        \t36a4c80000000002
"""

_DEVICE_INFO = """\
hca_id:\trdma_en2
\ttransport:\t\t\tThunderbolt (5)
\tfw_ver:\t\t\t\t0
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tlink_layer:\t\tThunderbolt

hca_id:\trdma_en3
\ttransport:\t\t\tThunderbolt (5)
\tfw_ver:\t\t\t\t0
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_DOWN (1)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tlink_layer:\t\tThunderbolt
"""

ANSWERS = {
    "sysctl -n kern.osproductversion": "26.2\n",
    "sysctl -n machdep.cpu.brand_string": "Apple M4 Pro\n",
    "sysctl -n hw.memsize": "68719476736\n",
    "sysctl -n hw.pagesize": "16384\n",
    "sysctl -n hw.perflevel0.physicalcpu": "10\n",
    "sysctl -n kern.maxfilesperproc": "184320\n",
    "sysctl -n kern.memorystatus_level": "71\n",
    "sysctl -n kern.memorystatus_vm_pressure_level": "1\n",
    "sysctl -n iogpu.wired_limit_mb": "0\n",
    "sysctl -n vm.page_free_count": f"{_PAGES['Pages free']}\n",
    "vm_stat": "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
    + "".join(f"{name + ':':<34}{count:>12}.\n" for name, count in _PAGES.items()),
    "sw_vers": "ProductName:\t\tmacOS\nProductVersion:\t\t26.2\nBuildVersion:\t\t25C56\n",
    "sw_vers -productVersion": "26.2\n",
    "networksetup -listallhardwareports": _HARDWARE_PORTS,
    "ifconfig": _IFCONFIG,
    "ibv_devices": _DEVICES,
    "ibv_devinfo": _DEVICE_INFO,
    "rdma_ctl status": "enabled\n",
    "ioreg -rc AGXAccelerator -d 1": """\
+-o AGXAcceleratorG16X  <class AGXAcceleratorG16X, id 0x100000413, registered, matched, active, busy 0>
    {
      "model" = "Apple M4 Pro"
      "gpu-core-count" = 20
    }
""",
    "system_profiler SPThunderboltDataType": """\
Thunderbolt/USB4:

    Thunderbolt/USB4 Bus 0:

      Vendor Name: Apple Inc.
      Device Name: Mac mini
      Port:
          Status: Device connected
          Link Status: 0x2
          Speed: Up to 120 Gb/s x1
          Current Link Width: 0x2
          Receptacle: 1
""",
}

_LAUNCHCTL = """
loaded="$FAKE_MAC/loaded"
mkdir -p "$loaded"
name() { printf '%s' "$1" | tr / _; }
case "$1" in
  bootstrap)
    [ -f "$3" ] || { echo "Bootstrap failed: 5: Input/output error" >&2; exit 5; }
    label=$(sed -n '/<key>Label<\\/key>/{n;s/.*<string>\\(.*\\)<\\/string>.*/\\1/p;}' "$3")
    if [ -e "$loaded/$(name "$2/$label")" ]; then
      echo "Bootstrap failed: 37: Operation already in progress" >&2; exit 37
    fi
    : > "$loaded/$(name "$2/$label")" ;;
  bootout)
    [ -e "$loaded/$(name "$2")" ] || { echo "Boot-out failed: 3: No such process" >&2; exit 3; }
    # As the real one: it returns before the service has ended.
    mv "$loaded/$(name "$2")" "$loaded/$(name "$2").leaving" ;;
  print)
    case "$2" in
      gui/*/*|system/*) ;;
      gui/*) [ ! -e "$FAKE_MAC/nobody" ] || { echo "Bad request." >&2; exit 112; }; exit 0 ;;
      system) exit 0 ;;
    esac
    if [ -e "$loaded/$(name "$2").leaving" ]; then
      rm "$loaded/$(name "$2").leaving"
      echo "$2 = {"; exit 0
    fi
    [ -e "$loaded/$(name "$2")" ] || { echo "Could not find service in domain" >&2; exit 113; }
    echo "$2 = {" ;;
  enable|disable|kickstart) ;;
  *) echo "Unrecognized subcommand: $1" >&2; exit 64 ;;
esac
"""

PROGRAMS = {
    "launchctl": _LAUNCHCTL,
    # Stays for as long as the process that -w names.
    "caffeinate": 'while kill -0 "$3" 2>/dev/null; do sleep 0.2; done',
    "sudo": 'exec "$@"',
    # Nobody here has a group `wheel`, and only root may give files away.
    "install": 'for last; do before="$file"; file="$last"; done; cp "$before" "$file"',
}
