"""Column names, classes and families as the publishers of the datasets give them."""

from __future__ import annotations

ADULT_NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
ADULT = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
)  # fmt: skip

BANK_NUMERIC = ("age", "balance", "day", "duration", "campaign", "pdays", "previous")
BANK = (
    "age", "job", "marital", "education", "default", "balance", "housing", "loan", "contact", "day",
    "month", "duration", "campaign", "pdays", "previous", "poutcome",
)  # fmt: skip

COVTYPE_NUMERIC = (
    "Elevation", "Aspect", "Slope", "Horizontal_Distance_To_Hydrology", "Vertical_Distance_To_Hydrology",
    "Horizontal_Distance_To_Roadways", "Hillshade_9am", "Hillshade_Noon", "Hillshade_3pm",
    "Horizontal_Distance_To_Fire_Points",
)  # fmt: skip
WILDERNESS = ("Rawah", "Neota", "Comanche Peak", "Cache la Poudre")
COVER_TYPES: tuple[str, ...] = (
    "Spruce/Fir", "Lodgepole Pine", "Ponderosa Pine", "Cottonwood/Willow", "Aspen", "Douglas-fir",
    "Krummholz",
)  # fmt: skip

PHISHING = (
    "having_IP_Address", "URL_Length", "Shortining_Service", "having_At_Symbol", "double_slash_redirecting",
    "Prefix_Suffix", "having_Sub_Domain", "SSLfinal_State", "Domain_registeration_length", "Favicon", "port",
    "HTTPS_token", "Request_URL", "URL_of_Anchor", "Links_in_tags", "SFH", "Submitting_to_email",
    "Abnormal_URL", "Redirect", "on_mouseover", "RightClick", "popUpWidnow", "Iframe", "age_of_domain",
    "DNSRecord", "web_traffic", "Page_Rank", "Google_Index", "Links_pointing_to_page", "Statistical_report",
)  # fmt: skip

KDD = (
    "duration", "protocol_type", "service", "flag", "src_bytes", "dst_bytes", "land", "wrong_fragment",
    "urgent", "hot", "num_failed_logins", "logged_in", "num_compromised", "root_shell", "su_attempted",
    "num_root", "num_file_creations", "num_shells", "num_access_files", "num_outbound_cmds",
    "is_host_login", "is_guest_login", "count", "srv_count", "serror_rate", "srv_serror_rate",
    "rerror_rate", "srv_rerror_rate", "same_srv_rate", "diff_srv_rate", "srv_diff_host_rate",
    "dst_host_count", "dst_host_srv_count", "dst_host_same_srv_rate", "dst_host_diff_srv_rate",
    "dst_host_same_src_port_rate", "dst_host_srv_diff_host_rate", "dst_host_serror_rate",
    "dst_host_srv_serror_rate", "dst_host_rerror_rate", "dst_host_srv_rerror_rate",
)  # fmt: skip

_FAMILY_MEMBERS = {
    "normal": "normal",
    "dos": "back land neptune pod smurf teardrop mailbomb apache2 processtable udpstorm worm",
    "probe": "ipsweep nmap portsweep satan mscan saint",
    "r2l": "ftp_write guess_passwd imap multihop phf spy warezclient warezmaster sendmail named "
    "snmpgetattack snmpguess xlock xsnoop httptunnel",
    "u2r": "buffer_overflow loadmodule perl rootkit ps sqlattack xterm",
}
KDD_FAMILIES = {attack: family for family, members in _FAMILY_MEMBERS.items() for attack in members.split()}

SUSY = (
    "lepton_1_pT", "lepton_1_eta", "lepton_1_phi", "lepton_2_pT", "lepton_2_eta", "lepton_2_phi",
    "missing_energy_magnitude", "missing_energy_phi", "MET_rel", "axial_MET", "M_R", "M_TR_2", "R", "MT2",
    "S_R", "M_Delta_R", "dPhi_r_b", "cos_theta_r1",
)  # fmt: skip

HIGGS = (
    "lepton_pT", "lepton_eta", "lepton_phi", "missing_energy_magnitude", "missing_energy_phi",
    "jet_1_pt", "jet_1_eta", "jet_1_phi", "jet_1_b_tag", "jet_2_pt", "jet_2_eta", "jet_2_phi", "jet_2_b_tag",
    "jet_3_pt", "jet_3_eta", "jet_3_phi", "jet_3_b_tag", "jet_4_pt", "jet_4_eta", "jet_4_phi", "jet_4_b_tag",
    "m_jj", "m_jjj", "m_lv", "m_jlv", "m_bb", "m_wbb", "m_wwbb",
)  # fmt: skip

YEAR_PREDICTION = tuple([f"timbre_mean_{k}" for k in range(1, 13)] + [f"timbre_covariance_{k}" for k in range(1, 79)])

RICE = (
    "Area", "Perimeter", "Major_Axis_Length", "Minor_Axis_Length", "Eccentricity", "Convex_Area", "Extent",
)  # fmt: skip

# The features of vFedSec, appendix A.1: the active party's, those of passive parties 1 and 2, of 3 and 4.
TAOBAO = (
    "pid", "cms_group_id", "cate_id", "brand", "new_user_class_level", "price",
    "final_gender_code", "age_level", "occupation", "pvalue_level", "shopping_level",
)  # fmt: skip
